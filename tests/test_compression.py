"""Small messages: compressors, what engines make of them, and what they cost."""

import dataclasses
import re
import warnings

import hypothesis.strategies as st
import numpy as np
import pytest
import torch
from hypothesis import given
from typer.testing import CliRunner

import proxdasa
from proxdasa import conditions, configs, networks, optim, problems, regularizers
from proxdasa.cli import app
from proxdasa.cli.shared_options import NetworkOptions
from proxdasa.compressors import QSGD, BFloat16, Float16, RandK, SignNorm, TopK, packing
from proxdasa.contracts import Part
from proxdasa.mixing import CompressedGossip
from proxdasa.runs.footprint import footprint
from proxdasa.runs.loop import Saving
from proxdasa.runs.setup import Setup
from proxdasa.samples import COMPRESSION as STREAM
from proxdasa.samples import Words
from tests import transcription
from tests.laws import HALF
from tests.processes import write_config
from tests.setups import METHODS, digest, in_threads, run_until
from tests.test_algorithms import PlainGradient, quadratic

KINDS = [TopK(0.3), RandK(0.3), QSGD(2), QSGD(5), QSGD(9), SignNorm(), Float16(), BFloat16()]
EACH = pytest.mark.parametrize("compressor", KINDS, ids=repr)
SEVERAL = [CompressedGossip(RandK(0.3), [0.3, 0.2]), proxdasa.Every(2, CompressedGossip(QSGD(4), 0.3))]
DTYPES = st.sampled_from([torch.float32, torch.float64])


def small(method=None, d=40, **changes):
    """Eight agents that disagree, in exact mode, two trials."""
    rng = np.random.default_rng(0)
    A, b = torch.diag_embed(torch.tensor(rng.uniform(0.5, 1.5, size=(8, d)))), torch.tensor(rng.normal(size=(8, d)))
    problem = problems.Quadratic(A.float(), b.float(), noise=0.3)
    chosen = {"iterations": 5, "observe_every": 5, "metrics": (), "trials": 2, "seed": 5, "exact": True}
    chosen |= {"regularizer": regularizers.L1(0.01), "network": networks.erdos_renyi(8, 0.4, seed=1)}
    return Setup(method or proxdasa.ProxDASAGT(0.3, 0.2), problem, **chosen | changes)


def words_of(compressor, d, rows=1, seed=0, number=0):
    count = compressor.words(d)
    padded = count + -count % 8
    return torch.from_numpy(Words()(seed, STREAM, 0, number, range(rows), padded)[:, :count].copy()) if count else None


def compress(compressor, rows, words=None):
    words = words_of(compressor, rows.shape[-1], len(rows)) if words is None else words
    return compressor.restore(compressor.reduce(rows, words), rows.shape[-1], words)


@st.composite
def vectors(draw, sizes=(1, 40), dtype=torch.float64, rows=1):
    """Rows of all kinds: spread over many orders, with ties and zeros."""
    rng, d = np.random.default_rng(draw(st.integers(0, 2**32))), draw(st.integers(*sizes))
    spread = rng.normal(size=(rows, d)) * 10.0 ** rng.integers(-8, 4, size=(rows, d))
    ties = rng.integers(-2, 3, size=(rows, d))
    return torch.tensor(np.where(rng.random((rows, 1)) < rng.random((rows, d)), spread, ties), dtype=dtype)


@EACH
@HALF
@given(x=vectors())
def test_it_is_the_contraction_that_it_says(compressor, x):
    """In the mean over the random words, for those that take some; otherwise always."""
    d, draws = x.shape[-1], 200 if compressor.words(x.shape[-1]) else 1
    many = x.expand(draws, d)
    errors = (compress(compressor, many, words_of(compressor, d, draws)) - many).square().sum(dim=-1)
    bound = (1 - compressor.contraction(d)) * x.square().sum()
    noise = 6 * errors.std() / draws**0.5 if draws > 1 else 0.0
    assert errors.mean() <= bound * (1 + 1e-9) + noise + 1e-30
    assert 0 < compressor.contraction(d) <= 1


@EACH
@HALF
@given(data=st.data(), dtype=DTYPES)
def test_what_arrives_is_what_the_sender_has_bit_by_bit(compressor, data, dtype):
    x = data.draw(vectors((17, 17), dtype, rows=3))
    parts, words = compressor.parts(17, dtype), words_of(compressor, 17, 3)
    reduced = compressor.reduce(x, words)
    message = packing.pack(reduced, parts)
    assert message.dtype == torch.uint8
    assert message.shape == (3, packing.size(parts))
    arrived = packing.unpack(message, parts)
    assert all(torch.equal(a, b) and a.dtype == b.dtype for a, b in zip(arrived, reduced, strict=True))
    restored = compressor.restore(arrived, 17, words if compressor.receiver_draws else None)
    assert digest(restored) == digest(compress(compressor, x, words))
    assert restored.dtype == dtype


@EACH
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_a_row_does_not_depend_on_the_others(compressor, dtype):
    x = torch.tensor(np.random.default_rng(0).normal(size=(6, 33)), dtype=dtype)
    words = words_of(compressor, 33, 6)
    for i in range(6):
        alone = compress(compressor, x[i : i + 1], None if words is None else words[i : i + 1])
        assert torch.equal(alone[0], compress(compressor, x, words)[i])


@EACH
@pytest.mark.parametrize("bad", [torch.nan, torch.inf, -torch.inf])
def test_a_row_that_is_not_finite_does_not_become_finite(compressor, bad):
    x = torch.ones(1, 10)
    x[0, 4] = bad
    if isinstance(compressor, RandK):
        found = [compress(compressor, x, words_of(compressor, 10, number=number)) for number in range(40)]
        assert any(not row.isfinite().all() for row in found)
        return
    restored = compress(compressor, x)
    assert not restored.isfinite().all()
    parts = compressor.parts(10, x.dtype)
    message = packing.pack(compressor.reduce(x, words_of(compressor, 10)), parts)
    assert not compressor.restore(packing.unpack(message, parts), 10, None).isfinite().all()


def test_of_equal_magnitudes_the_first_are_sent():
    x = torch.tensor([[1.0, -2.0, 2.0, -2.0, 2.0, 0.5], [0.0, 0.0, 0.0, 0.0, 0.0, 0.0]])
    indices, values = TopK(0.5).reduce(x, None)
    assert indices.tolist() == [[1, 2, 3], [0, 1, 2]]
    assert values.tolist() == [[-2.0, 2.0, -2.0], [0.0, 0.0, 0.0]]


@given(st.data())
def test_the_largest_are_those_of_a_stable_sort(data):
    x = data.draw(vectors(sizes=(2, 30)))
    k = -(-x.shape[-1] * 3 // 10)
    expected = sorted(range(x.shape[-1]), key=lambda i: (-abs(float(x[0, i])), i))[:k]
    assert TopK(0.3).reduce(x, None)[0][0].tolist() == sorted(expected)


def test_random_coordinates_are_equally_likely():
    """Over rounds and agents."""
    drawn = torch.zeros(10)
    for number in range(100):
        words = words_of(RandK(0.3), 10, rows=20, number=number)
        drawn += compress(RandK(0.3), torch.ones(20, 10), words).sum(dim=0)
    assert abs(drawn / 2_000 - 0.3).max() < 0.05


@pytest.mark.parametrize("share", [0.1, 0.3, 0.07, 1.0])
@pytest.mark.parametrize("d", [1, 10, 100, 1000])
def test_the_number_of_coordinates_is_rounded_up(share, d):
    k = TopK(share).parts(d, torch.float32)[0].numbers
    assert k == max(1, -(-round(share * d * 1000) // 1000))


def test_sizes():
    def size(compressor):
        return packing.size(compressor.parts(1000, torch.float32))

    assert size(TopK(0.1)) == 100 * 4 + 100 * 10 / 8
    assert size(RandK(0.1)) == 400
    assert size(QSGD(4)) == 500 + 4
    assert size(SignNorm()) == 125 + 4
    assert size(Float16()) == size(BFloat16()) == 2000 + 4


@pytest.mark.parametrize(
    "make",
    [lambda: TopK(0), lambda: RandK(1.5), lambda: QSGD(1), lambda: QSGD(17), lambda: CompressedGossip(TopK(0.5), 0.0),
     lambda: CompressedGossip(TopK(0.5), 1.5), lambda: CompressedGossip(TopK(0.5), []),
     lambda: CompressedGossip(TopK(0.5), [0.5, 2.0]), lambda: CompressedGossip(TopK, 0.5),
     lambda: CompressedGossip("TopK", 0.5), lambda: CompressedGossip(TopK(0.5), "0.5")],
)  # fmt: skip
def test_impossible_settings_are_refused(make):
    with pytest.raises((ValueError, TypeError), match=r"must be"):
        make()


@pytest.mark.parametrize("compressor", [TopK(0.4), RandK(0.5), QSGD(3)], ids=repr)
def test_it_equals_the_papers_pseudo_code_with_explicit_copies(compressor):
    """CDProxSGT, whose two vectors have steps and copies of their own."""
    network, trials, K, seed = networks.star(6), 2, 8, 3
    problem, x0 = quadratic(6), torch.tensor(np.random.default_rng(5).normal(size=(6, 6)))
    result = proxdasa.run(
        proxdasa.CDProxSGT(0.05), problem, network, regularizer=regularizers.L1(0.3), iterations=K, trials=trials,
        seed=seed, x0=x0, metrics=(), mixing=CompressedGossip(compressor, [0.3, 0.2]),
    )  # fmt: skip
    for trial in range(trials):

        def send(i, v, k, which, trial=trial):
            row, drawn = torch.tensor(v).unsqueeze(0), None
            if compressor.words(6):  # two rounds in an iteration
                drawn = torch.from_numpy(Words()(seed, STREAM, trial, 2 * k + which, range(i, i + 1), 8)[:, :6].copy())
            return compress(compressor, row, drawn)[0].numpy()

        expected = transcription.cdprox_sgt_compressed(
            network.W.toarray(), send, transcription.prox_l1(0.3), PlainGradient(problem, seed, trial, trials),
            x0.numpy(), K, 0.05, 0.3, 0.2,
        )  # fmt: skip
        for name, rows in expected.items():
            np.testing.assert_allclose(result.state[name][trial].numpy(), rows, rtol=0, atol=1e-10)
    torch.testing.assert_close(result.state["y"].mean(dim=1), result.state["g"].mean(dim=1), rtol=0, atol=1e-12)


@pytest.mark.parametrize("name", ["prox-dasa-gt", "deepstorm", "prox-gt"])
def test_all_coordinates_and_a_full_step_are_gossip_up_to_rounding(name):
    plain = small(METHODS[name], dtype=torch.float64)
    whole = dataclasses.replace(plain, mixing=CompressedGossip(TopK(1.0), 1.0))
    torch.testing.assert_close(whole.run().x, plain.run().x, rtol=1e-9, atol=1e-12)


@pytest.mark.parametrize("compressor", [TopK(0.1), RandK(0.1), QSGD(4), SignNorm(), Float16(), BFloat16()], ids=repr)
def test_the_same_bits_in_any_number_of_processes(compressor):
    made = small(mixing=CompressedGossip(compressor, 0.2))
    alone = made.run()
    fast = dataclasses.replace(made, exact=False).run()
    torch.testing.assert_close(fast.x, alone.x, rtol=1e-3, atol=1e-4)
    for size in (2, 3, 4) if isinstance(compressor, RandK) else (3,):
        results = in_threads(size, lambda transport: made.run(processes=transport))
        assert digest(results[0].x) == digest(alone.x)
        assert all(torch.equal(results[0].state[name], alone.state[name]) for name in alone.state)
        assert results[0].records[-1]["bytes"] == alone.records[-1]["bytes"] == fast.records[-1]["bytes"]
    assert {name for name in alone.state if "copy" in name} == {f"beside.copy.0.{i}" for i in range(3)}


@pytest.mark.parametrize("mixing", SEVERAL, ids=["each", "some"])
def test_an_interrupted_run_continues_with_another_number_of_processes(tmp_path, mixing):
    made = small(proxdasa.CDProxSGT(0.05), mixing=mixing, iterations=10)
    whole = made.run()

    stopped = run_until(made, 3, 3, Saving(tmp_path))
    assert {result.stopped for result in stopped} == {"interrupted"}
    assert stopped[0].iterations < 9
    resumed, *_ = in_threads(2, lambda transport: made.run(None, Saving(tmp_path), transport))
    assert digest(resumed.x) == digest(whole.x)
    assert resumed.records[-1]["bytes"] == whole.records[-1]["bytes"]


def test_an_interruption_within_a_step_leaves_no_trace(tmp_path):
    made = small(mixing=CompressedGossip(TopK(0.2), 0.3), observe_every=3, iterations=12)
    loop = made.loop()
    mix, calls = loop.engine.mix, []

    def interrupt(*tensors):
        mixed = mix(*tensors)
        calls.append(1)
        if len(calls) == 8:
            raise KeyboardInterrupt
        return mixed

    loop.engine.mix = interrupt
    assert loop.run(None, Saving(tmp_path)).iterations == 7, "the eighth step was in its middle"
    assert digest(made.run(None, Saving(tmp_path)).x) == digest(made.run().x)


@pytest.mark.parametrize("size", [1, 3])
def test_trials_that_diverge_do_no_harm_to_the_others(size):
    """The replay that finds the first agent goes back to earlier copies, and the run then goes on with its own."""

    def run(gammas):
        made = Setup(
            proxdasa.DPSGD(proxdasa.per_trial(gammas)), quadratic(6), networks.ring(6), trials=2, iterations=11,
            observe_every=4, exact=True, metrics=(), mixing=CompressedGossip(TopK(0.4), 0.3),
        )  # fmt: skip
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", proxdasa.DivergenceWarning)
            first, *_ = in_threads(size, lambda transport: made.run(processes=transport))
        return first

    broken, sound = run([1e60, 0.05]), run([0.05, 0.05])
    assert list(broken.diverged) == [0]
    assert 4 < broken.diverged[0].iteration < 8, "after the first observation, and the run goes on after the second"
    assert not broken.x[0].isfinite().all()
    assert torch.equal(broken.x[1], sound.x[1])


@dataclasses.dataclass(frozen=True, eq=False)
class MixesAtItsStart(proxdasa.DPSGD):
    def init(self, agents, x):
        return self.State(agents.mix(agents.mix(x)))


def test_a_method_may_mix_at_its_start(tmp_path):
    """There every vector is mixed once, with copies that nobody needs later."""
    mixing = CompressedGossip(RandK(0.3), 0.2)
    made, plain = (small(method(0.1), mixing=mixing) for method in (MixesAtItsStart, proxdasa.DPSGD))
    alone = made.run()
    assert {name for name in alone.state if "copy" in name} == {"beside.copy.0.0"}
    first, *_ = in_threads(3, lambda transport: made.run(None, Saving(tmp_path, 3), transport))
    assert digest(first.x) == digest(alone.x)
    assert set(first.state) == set(alone.state), "a trial step before the start leaves nothing behind"
    assert alone.records[-1]["bytes"] == plain.run().records[-1]["bytes"] * 7 / 5


@pytest.mark.parametrize("mixing", [proxdasa.Gossip(2), proxdasa.Every(3), *SEVERAL])
def test_bytes_counted_are_bytes_sent(mixing):
    """With an agent in each process, what crosses the wire are the vectors of all trials, and headers."""
    network, K = networks.star(4), 6
    made = Setup(
        proxdasa.CDProxSGT(0.01), quadratic(4), network, iterations=K, observe_every=K, metrics=(), trials=3,
        mixing=mixing,
    )  # fmt: skip
    alone = made.run().records[-1]
    first = in_threads(4, lambda transport: made.run(processes=transport))[0].records[-1]
    header = 8 if getattr(mixing, "compression", None) else 16
    degree = 2 * len(network.edges) / 4
    assert first["wire_bytes"] == 3 * first["bytes"] + header * first["rounds"] * degree
    assert first["bytes"] == alone["bytes"]
    compression = getattr(mixing, "compression", None)
    one = packing.size(compression.compressor.parts(6, torch.float64)) if compression else 48
    assert alone["bytes"] == one * degree * alone["vectors"]


def test_sums_over_neighbours_are_not_compressed_and_counted_as_such():
    mixing = CompressedGossip(TopK(0.1), step=0.5)
    agents = Setup(proxdasa.CDProxSGT(0.01), quadratic(4), networks.star(4), mixing=mixing).engine()
    agents.neighbour_sum(torch.zeros(1, 4, 6, dtype=torch.float64))
    assert agents.counts()["bytes"] == 6 / 4 * 6 * 8, "three links, six numbers each way"


def test_bytes_of_a_graph_that_changes_are_those_of_its_links():
    made = Setup(proxdasa.DPSGD(0.01), quadratic(8), networks.one_peer_hypercube(8), iterations=12)
    assert made.run().records[-1]["bytes"] == 12 * 48, "one neighbour in each round"
    paused = dataclasses.replace(made, network=networks.ring(8), conditions=[conditions.Downtimes([(0, 0, 6)])])
    assert paused.run().records[-1]["bytes"] == (6 * 12 + 6 * 16) * 48 / 8


def test_named_words_differ_between_trials_agents_rounds_and_tensors():
    engine = small(d=50, mixing=CompressedGossip(RandK(0.1), 0.5)).engine()
    engine.enter(0)
    x = torch.ones(2, 8, 50)
    engine.mix(x, x)
    engine.mix(x, x)
    copies = torch.cat([*engine.extra_rows.values()]).reshape(-1, 50)
    assert len({tuple(row) for row in copies.tolist()}) == len(copies) == 2 * 2 * 2 * 8


def test_differences_reach_the_solution_where_compressed_rows_do_not():
    problem, network = quadratic(6, noise=0.0), networks.complete(6)
    expected = np.linalg.solve(problem.A.mean(0).numpy(), problem.b.mean(0).numpy())

    class Direct(proxdasa.CDProxSGT):
        """Compresses the rows themselves."""

        def step(self, agents, k, state):
            class Sends:
                grad, prox = agents.grad, agents.prox

                def mix(self, x):
                    sent = compress(TopK(0.3), x)
                    return x + 0.4 * (agents.mix(sent) - sent)

            return super().step(Sends(), k, state)

    def error(method, mixing):
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", proxdasa.DivergenceWarning)
            settings = {"mixing": mixing, "iterations": 150, "observe_every": 150, "metrics": ()}
            result = proxdasa.run(method(0.2), problem, network, **settings)
        return abs(result.x[0].numpy() - expected).max()

    assert error(proxdasa.CDProxSGT, CompressedGossip(TopK(0.3), 0.4)) < 1e-8
    assert not error(Direct, proxdasa.Gossip()) < 1e-2


QUADRATIC = quadratic(8)


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"conditions": [conditions.LinkLoss(0.1)]}, "and conditions exclude each other: after a lost message"),
        ({"network": networks.one_peer_hypercube(8)}, "needs the same neighbours in all rounds"),
        (
            {"algorithm": proxdasa.SPPDM(1.0, 1.0, 1.0, 0.5, 0.1)},
            "SPPDM sends its vectors without mixing, so CompressedGossip",
        ),
        ({"mixing": CompressedGossip(TopK(0.1), [0.1, 0.2])}, "has 2 steps, but a step of D-PSGD mixes 1 vector"),
    ],
)
@pytest.mark.parametrize("every", [False, True])
def test_what_cannot_be_is_refused(given, said, every):
    chosen = {
        "algorithm": proxdasa.DPSGD(0.1), "problem": QUADRATIC, "network": networks.ring(8),
        "mixing": CompressedGossip(TopK(0.1), 0.1),
    } | given  # fmt: skip
    chosen["mixing"] = proxdasa.Every(2, chosen["mixing"]) if every else chosen["mixing"]
    with pytest.raises(ValueError, match=said.replace("CompressedGossip", r"(Every\(.*)?CompressedGossip")):
        proxdasa.run(iterations=2, **chosen)


def test_optimizers_refuse_it():
    with pytest.raises(ValueError, match="keeps copies of neighbours' parameters"):
        optim.ProxDASA(
            torch.nn.Linear(2, 1).parameters(), networks.ring(1), gamma=0.1, alpha=0.1,
            mixing=CompressedGossip(TopK(0.1), 0.1),
        )  # fmt: skip


def test_a_file_describes_it(tmp_path):
    file = tmp_path / "run.toml"
    file.write_text(
        """
        iterations = 5
        algorithm = { name = "CDProxSGT", gamma = 0.01 }
        problem = { name = "PhaseRetrieval", agents = 4, dim = 6 }
        network = "ring"
        [mixing]
        name = "CompressedGossip"
        compressor = { name = "TopK", share = 0.5 }
        step = [0.4, 0.2]
        """,
        encoding="utf-8",
    )
    made = configs.read(file)
    assert made.mixing == CompressedGossip(TopK(0.5), (0.4, 0.2))
    result = made.run()
    assert result.config["mixing"] == {
        "name": "CompressedGossip", "compressor": {"name": "TopK", "share": 0.5}, "step": [0.4, 0.2],
    }  # fmt: skip
    again = configs.build({key: value for key, value in result.config.items() if key != "facts"})
    assert again.mixing == made.mixing
    other = dataclasses.replace(made, mixing=CompressedGossip(TopK(0.4), (0.4, 0.2)))
    assert other.config() != made.config()


def test_it_needs_memory_for_copies():
    plain = Setup(proxdasa.DPSGD(0.1), QUADRATIC, networks.ring(8))
    compressed = dataclasses.replace(plain, mixing=CompressedGossip(QSGD(4), 0.1))
    needed = [footprint(each.algorithm, each.problem, each.network, each.mixing, 1) for each in (plain, compressed)]
    assert needed[1] - needed[0] == 8 * 6 * (3 * 8 + 16)


MIXINGS = {
    "Gossip(2)": proxdasa.Gossip(2),
    "Chebyshev": proxdasa.Chebyshev(),
    "Every(5, Gossip(rounds=auto))": proxdasa.Every(5, proxdasa.Gossip("auto")),
    "CompressedGossip(TopK(0.1), step=0.3)": CompressedGossip(TopK(0.1), 0.3),
    "CompressedGossip(QSGD(bits=4), [0.3, 0.2])": CompressedGossip(QSGD(4), (0.3, 0.2)),
}


@pytest.mark.parametrize("text", MIXINGS)
def test_the_command_line_names_mixings(text):
    assert configs.calls.mixing(text) == MIXINGS[text]


@pytest.mark.parametrize(
    ("text", "said"),
    [
        (
            "Gosip(2)",
            "there is no mixing 'Gosip'; accepted: Gossip, Chebyshev, Every, CompressedGossip, in a call such",
        ),
        ("Gossip(0)", 'rounds must be a whole number of at least 1, or "auto"; got 0'),
        ("Gossip(2, 3)", "too many positional arguments; Gossip accepts rounds"),
        ("CompressedGossip(TopK(0.1))", "step is missing; CompressedGossip needs it"),
        ("CompressedGossip(TopQ(0.1), 0.3)", "cannot be read: there is no 'TopQ'"),
        ("CompressedGossip(Gossip(1), 0.3)", "there is no compressor 'Gossip'; accepted: TopK, RandK"),
        ("Gossip(**{'rounds': 3})", "cannot be read: **{'rounds': 3} is not accepted; give each argument by its name"),
        ("Every(2*3)", "2 * 3 is neither a number, a text, a list nor a call"),
        ("Every(5, mixing.Gossip(2))", "mixing.Gossip(2) is neither a number, a text, a list nor a call"),
        ("CompressedGossip(TopK(2), 0.3)", "share must be a number between 0 and 1; got 2"),
    ],
)
def test_a_mixing_that_cannot_be_read_is_refused(text, said):
    with pytest.raises(configs.ConfigError, match=re.escape(said)):
        configs.calls.mixing(text)


def test_the_commands_take_a_mixing_in_place_of_the_files(tmp_path):
    file = write_config(tmp_path / "run.toml", iterations=4)
    text = "CompressedGossip(RandK(0.5), step=0.3)"
    expected = dataclasses.replace(configs.read(file), mixing=CompressedGossip(RandK(0.5), 0.3))
    options = ["-o", str(tmp_path / "out"), "--mixing", text]
    done = CliRunner().invoke(app, ["run", str(file), *options])
    assert done.exit_code == 0, done.output
    result = proxdasa.load(tmp_path / "out")
    assert torch.equal(result.x, expected.run().x)
    assert result.config["mixing"]["compressor"] == {"name": "RandK", "share": 0.5}
    done = CliRunner().invoke(
        app, ["tune", str(file), "-o", str(tmp_path / "tuned"), "--mixing", text, "--grid", "gamma=0.01,0.02"]
    )
    assert done.exit_code == 0, done.output
    assert proxdasa.load(tmp_path / "tuned" / "sweep").config["mixing"] == result.config["mixing"]
    refused = CliRunner().invoke(app, ["run", str(file), *options, "--overwrite", "--condition", "LinkLoss(0.1)"])
    assert refused.exit_code == 2
    assert "conditions exclude each other" in " ".join(refused.output.split())


def test_processes_are_launched_with_the_options_of_the_network():
    options = NetworkOptions(["LinkLoss(0.3)", "Outages(200, 20)"], "Every(5)")
    assert options.arguments() == [
        "--condition", "LinkLoss(0.3)", "--condition", "Outages(200, 20)", "--mixing", "Every(5)",
    ]  # fmt: skip


class Whole:
    """Everything, as somebody may write it; the others below change a verb."""

    receiver_draws = False

    def words(self, d):
        return 0

    def contraction(self, d):
        return 1.0

    def parts(self, d, dtype):
        return (Part(d, dtype),)

    def reduce(self, rows, words):
        return (rows.clone(),)

    def restore(self, parts, d, words):
        return parts[0]


class Less(Whole):
    def parts(self, d, dtype):
        return (Part(1, dtype),)


class Sum(Whole):
    def restore(self, parts, d, words):
        return parts[0].sum(-1, keepdim=True)


@pytest.mark.parametrize(
    ("compressor", "words"),
    [
        (Less(), r"Less.reduce must give \[1, 4, 1\] of torch.float32, as Less.parts says; got \[1, 4, 3\]"),
        (Sum(), r"Sum.restore must be \[1, 4, 3\] of torch.float32, as x is; got \[1, 4, 1\]"),
    ],
)
def test_own_compressors_of_another_form_are_refused(compressor, words):
    """One number for a row would broadcast, and bytes are counted by what ``parts`` says."""
    problem = problems.Quadratic(torch.eye(3).expand(4, 3, 3), torch.ones(4, 3))

    def step(chosen):
        mixing = proxdasa.CompressedGossip(chosen, 0.5)
        return proxdasa.run(proxdasa.DPSGD(0.1), problem, networks.ring(4), mixing=mixing, iterations=1)

    assert step(Whole()).iterations == 1
    with pytest.raises(ValueError, match=words):
        step(compressor)
