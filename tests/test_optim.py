"""Optimizers for training loops of one's own: the same mathematics as `run`, by messages, and torch's customs."""

import copy
import os
from contextlib import suppress
from functools import cache, partial

import pytest
import torch
from torch import nn

import proxdasa
from proxdasa import networks, optim, schedules
from proxdasa.contracts import NonFiniteError, PeerError
from proxdasa.data import Dataset
from proxdasa.engines import Alone, connect
from proxdasa.engines.messages.threads import in_threads
from proxdasa.problems import Supervised
from proxdasa.regularizers import L1, Blocks, SquaredL2, Zero
from proxdasa.samples import Samples
from tests.processes import LINUX, fork_together

AGENTS, STEPS, SEED = 3, 8, 5
METHODS = ("ProxDASA", "ProxDASAGT")
SETTINGS = {"gamma": 0.3, "alpha": 0.4, "regularizer": L1(0.01), "mixing": proxdasa.Chebyshev(2)}
NETWORK = networks.path(AGENTS)
RANDOM = torch.Generator().manual_seed(0)
X, Y = torch.randn(60, 4, generator=RANDOM), torch.randint(3, (60,), generator=RANDOM)


def net(dtype=torch.float64):
    """The same for everybody, without torch's generator, which threads share."""
    random = torch.Generator().manual_seed(1)
    model = nn.Sequential(nn.Linear(4, 5), nn.Tanh(), nn.Linear(5, 3)).to(dtype)
    for parameter in model.parameters():
        nn.init.normal_(parameter, std=0.5, generator=random)
    return model


def new_problem(agents, dtype):
    return Supervised(net(dtype), Dataset("made up", X, Y, classes=3), agents, batch_size=4, dtype=dtype)


problem = cache(new_problem)
"""Made once; nothing changes it."""


@cache
def part_of(agent, agents, dtype):
    """The problem of one agent, made once."""
    return problem(agents, dtype).restrict(range(agent, agent + 1))


def train(
    method, transport, start=0, stop=STEPS, saved=None, groups=nn.Module.parameters, before=lambda *_: None,
    dtype=torch.float64, **settings,
):  # fmt: skip
    """A training loop of one's own, on the samples that `run` takes; the model and the optimizer after it."""
    agents, rank = (transport.size, transport.rank) if transport else (1, 0)
    part = part_of(rank, agents, dtype)
    device = transport.device if transport else None
    batches, model = Samples(part, SEED, 1, range(rank, rank + 1)), net(dtype).to(device)
    make, settings = getattr(optim, method), {**SETTINGS, **settings}
    optimizer = make(groups(model), networks.path(agents), **settings, processes=transport)
    if saved:
        model.load_state_dict(saved["model"])
        optimizer.load_state_dict(saved["optimizer"])
    for k in range(start, stop):
        before(k, model, optimizer)
        rows = batches(k)[0, 0]
        optimizer.zero_grad()
        part.loss(model(part.data.x[rows].to(device, dtype)), part.data.y[rows].to(device)).mean().backward()
        optimizer.step()
    return model, optimizer


def interrupted(method, transport, file, **settings):
    """The same in two halves, the second from what the first has saved."""
    model, optimizer = train(method, transport, stop=STEPS // 2, **settings)
    torch.save({"model": model.state_dict(), "optimizer": optimizer.state_dict()}, file)
    saved = torch.load(file, weights_only=True)
    return train(method, transport, start=STEPS // 2, saved=saved, **settings)


@cache
def reference(method, agents=AGENTS, dtype=torch.float64, steps=STEPS, alpha=0.4, gamma=0.3, **settings):
    """The same by `run`: every variable ``[agents, d]``."""
    alpha = schedules.constant(alpha) if isinstance(alpha, float) else alpha
    settings = {name: value for name, value in SETTINGS.items() if name not in ("gamma", "alpha")} | settings
    result = proxdasa.run(
        getattr(proxdasa, method)(gamma, alpha), problem(agents, dtype), networks.path(agents),
        iterations=steps, seed=SEED, exact=True, metrics=(), **settings,
    )  # fmt: skip
    return {name: rows[0] for name, rows in result.state.items()}


def flat(tensors):
    return torch.cat([tensor.detach().flatten() for tensor in tensors])


def variables(model, optimizer):
    """Everything of one agent, in the order of the model's parameters."""
    names = optimizer.state[next(model.parameters())]
    state = {name: flat(optimizer.state[p][name] for p in model.parameters()) for name in names}
    return {"x": flat(model.parameters()), **state}


def assert_equal(agents, expected, tolerance=1e-12):
    for i, found in enumerate(agents):
        assert found.keys() == expected.keys()
        for name, rows in expected.items():
            torch.testing.assert_close(found[name], rows[i], rtol=0, atol=tolerance, msg=f"{name} of agent {i}")


def together(act, agents=AGENTS):
    """What ``act(transport)`` returns, or raises, for each of so many agents at once."""
    results = in_threads(agents, act)
    unexpected = [result for result in results if isinstance(result, AssertionError | TypeError | KeyError)]
    if unexpected:
        raise unexpected[0]
    return results


def agent(folder, by):
    """What each process of the tests with processes does."""
    if by == "uneven":
        transport = connect(timeout=3_600)
        try:
            uneven(transport)
        except PeerError as error:
            (folder / str(transport.rank)).write_text(str(error), encoding="utf-8")
            raise
    transport = connect(device=f"cuda:{os.environ['RANK']}" if by == "nccl" else "cpu")
    if by == "gloo as if it were nccl":
        transport._post = transport._post_together
    for method in METHODS:
        file = folder / f"{method}-{transport.rank}"
        model, optimizer = interrupted(method, transport, file)
        with optimizer.averaged():
            mean = flat(model.parameters())
        torch.save({**variables(model, optimizer), "mean": mean}, file)
    transport.close()


GPUS = pytest.mark.skipif(torch.cuda.device_count() < AGENTS, reason=f"{AGENTS} GPUs are needed")


@LINUX
@pytest.mark.parametrize("by", ["gloo", "gloo as if it were nccl", pytest.param("nccl", marks=GPUS)])
def test_processes_do_what_run_does_and_resume(tmp_path, by):
    assert fork_together(tmp_path, AGENTS, agent, tmp_path, by) == ([0] * AGENTS, "")
    for method in METHODS:
        agents = [torch.load(tmp_path / f"{method}-{i}", map_location="cpu") for i in range(AGENTS)]
        expected = reference(method)
        mean = expected["x"].mean(0).expand(AGENTS, -1)
        assert_equal(agents, {**expected, "mean": mean})


def test_everything_in_a_step_lives_where_the_model_does():
    def act(transport, elsewhere):
        model = net()
        optimizer = optim.ProxDASAGT(model.parameters(), NETWORK, **SETTINGS, processes=transport)
        with torch.device(elsewhere):  # whatever is made without saying where is made there
            for _ in range(3):
                model(X[:4].double()).square().mean().backward()
                optimizer.step()
        return variables(model, optimizer)

    for there, here in zip(*(together(partial(act, elsewhere=name)) for name in ("meta", "cpu")), strict=True):
        assert all(torch.equal(there[name], here[name]) for name in here)


def test_messages_from_a_gpu_need_one(monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    monkeypatch.setattr(os, "environ", os.environ | {"RANK": "0", "WORLD_SIZE": "1"})
    with pytest.raises(ValueError, match=r"device: messages from cuda:0 need a GPU and a torch that has NCCL; without"):
        connect(device="cuda:0")
    monkeypatch.setattr(os, "environ", {"PMI_RANK": "0"})
    with pytest.raises(ValueError, match=r"device: under MPI messages leave from main memory, not from cuda:0; leave"):
        connect(device="cuda:0")


def test_runs_refuse_messages_from_a_gpu(monkeypatch):
    monkeypatch.setattr(Alone, "device", torch.device("cuda:1"))
    with pytest.raises(ValueError, match=r"main memory, but .* device = cuda:1; that is for models on GPUs, in prox"):
        proxdasa.run(proxdasa.ProxDASA(0.1), problem(AGENTS, torch.float64), NETWORK, iterations=1, exact=True)


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize(("dtype", "tolerance"), [(torch.float32, 1e-6), (torch.float64, 1e-12)], ids=str)
def test_all_variables_are_those_of_run(method, dtype, tolerance):
    agents = together(lambda transport: variables(*train(method, transport, dtype=dtype)))
    assert_equal(agents, reference(method, dtype=dtype), tolerance)


@pytest.mark.parametrize("method", METHODS)
def test_one_agent_needs_no_launcher(method, monkeypatch):
    for name in ("RANK", "OMPI_COMM_WORLD_RANK", "PMI_RANK", "PMIX_RANK"):
        monkeypatch.delenv(name, raising=False)
    assert_equal([variables(*train(method, None))], reference(method, agents=1))


def test_groups_have_their_own_regularizer():
    """Ridge on the biases, the lasso elsewhere; by `run` these are ranges of coordinates."""

    def groups(model):
        weights, biases = ([p for p in model.parameters() if p.ndim == ndim] for ndim in (2, 1))
        return [{"params": weights}, {"params": []}, {"params": biases, "regularizer": SquaredL2(0.5)}]

    agents = together(lambda transport: variables(*train("ProxDASA", transport, groups=groups)))
    lasso, ridge = SETTINGS["regularizer"], SquaredL2(0.5)
    psi = Blocks([(0, 20, lasso), (20, 25, ridge), (25, 40, lasso), (40, 43, ridge)])
    assert_equal(agents, reference("ProxDASA", regularizer=psi))


@pytest.mark.parametrize("method", METHODS)
def test_learning_rate_schedulers_scale_alpha(method):
    """StepLR halves α every three steps."""
    schedulers = []

    def halve(k, _, optimizer):
        if k:
            schedulers[0].step()
        else:
            schedulers.append(torch.optim.lr_scheduler.StepLR(optimizer, step_size=3, gamma=0.5))

    found = variables(*train(method, Alone(), before=halve))
    assert_equal([found], reference(method, agents=1, alpha=lambda k: 0.4 * 0.5 ** (k // 3)))


def test_groups_have_their_own_alpha():
    """In the first step z = 0, so x' = x + α (prox_γ(x) − x)."""
    a, b = (nn.Parameter(torch.full((2,), 2.0)) for _ in range(2))
    optimizer = alone([{"params": [a], "lr": 0.5}, {"params": b}], gamma=1.0, alpha=0.8, regularizer=L1(1.0))
    a.grad, b.grad = torch.zeros(2), torch.zeros(2)
    optimizer.step()
    torch.testing.assert_close([a.data, b.data], [torch.full((2,), 1.6), torch.full((2,), 1.2)])


@pytest.mark.parametrize(
    ("schedule", "needs"),
    [(schedules.horizon(0.5), True), (schedules.cube_root_horizon(0.9), True), (schedules.diminishing(0.3), False)],
    ids=lambda value: getattr(value, "name", ""),
)
def test_schedules_are_bound_as_by_run(schedule, needs):
    agents = together(lambda t: variables(*train("ProxDASA", t, alpha=schedule, iterations=STEPS if needs else None)))
    assert_equal(agents, reference("ProxDASA", alpha=schedule))
    if needs:
        with pytest.raises(ValueError, match=f"schedules.{schedule.name} depends on the number K of steps; give"):
            alone(net().parameters(), alpha=schedule)


@pytest.mark.parametrize("method", METHODS)
def test_a_state_resumes_exactly(method, tmp_path):
    alpha = schedules.diminishing(0.5)
    whole = variables(*train(method, Alone(), alpha=alpha))
    resumed = variables(*interrupted(method, Alone(), tmp_path / "state", alpha=alpha))
    assert all(torch.equal(whole[name], resumed[name]) for name in whole)


def test_going_on_does_not_change_the_state_that_was_loaded():
    model, optimizer = train("ProxDASAGT", Alone(), stop=3)
    saved = copy.deepcopy({"model": model.state_dict(), "optimizer": optimizer.state_dict()})
    z = saved["optimizer"]["state"][0]["z"].clone()
    train("ProxDASAGT", Alone(), start=3, saved=saved)
    assert torch.equal(saved["optimizer"]["state"][0]["z"], z)
    assert saved["optimizer"]["param_groups"][0]["k"] == 3


def test_states_of_others_are_refused():
    tracked, plain = alone(net().parameters(), "ProxDASAGT"), alone(net().parameters())
    other = alone(nn.Sequential(nn.Linear(4, 3), nn.Tanh(), nn.Linear(3, 3)).parameters())
    adam = torch.optim.Adam(net().parameters())
    for state in (tracked.state_dict(), other.state_dict(), adam.state_dict()):
        with pytest.raises(ValueError, match="not saved by ProxDASA with the same parameters"):
            plain.load_state_dict(state)


def test_agents_do_not_load_the_state_of_another():
    """One file for all would change the mean of the trackers for good; so would another number of agents."""

    def act(transport):
        _, optimizer = train("ProxDASAGT", transport, stop=2)
        state = copy.deepcopy(optimizer.state_dict())
        for group in state["param_groups"]:
            group["agent"] = "agent 0 of 3"
        optimizer.load_state_dict(state)

    # All name the agent that was the first to notice.
    refusal = "of 3 loads the state that agent 0 of 3 saved; every agent saves and loads a file of its own"
    first, second, _ = (str(error) for error in together(act))
    assert any(f"agent {agent} {refusal}" in first for agent in (1, 2))
    assert second in {f"agent {agent} {refusal}" for agent in (1, 2)}


def test_states_without_an_owner_can_be_loaded():
    """As earlier versions saved them."""
    _, optimizer = train("ProxDASAGT", Alone(), stop=2)
    state = copy.deepcopy(optimizer.state_dict())
    del state["param_groups"][0]["agent"]
    optimizer.load_state_dict(state)
    assert optimizer.state_dict()["param_groups"][0]["agent"] == "agent 0 of 1"


def test_a_state_is_not_rounded_when_it_is_loaded():
    single, double = (alone(net(dtype).parameters()) for dtype in (torch.float32, torch.float64))
    with pytest.raises(ValueError, match="not saved by ProxDASA with the same parameters"):
        single.load_state_dict(double.state_dict())


def test_a_step_at_the_mean_is_refused():
    """It would be forgotten in x, but not in the method's other variables."""
    model = net()
    optimizer = alone(model.parameters())
    model(X[:, :4].double()).sum().backward()
    with optimizer.averaged(), pytest.raises(ValueError, match="would be lost"), optimizer.averaged():
        optimizer.step()
    optimizer.step()


def test_copies_are_refused():
    with pytest.raises(TypeError, match="cannot be copied or pickled; save its state_dict"):
        copy.deepcopy(alone(net().parameters()))


@pytest.mark.filterwarnings("ignore:optimizer contains a parameter group with duplicate")
def test_a_parameter_that_is_given_twice_is_refused():
    parameter = nn.Parameter(torch.ones(2))
    with pytest.raises(ValueError, match="a parameter was given twice"):
        alone([parameter, parameter])


def test_agents_resume_after_the_same_step():
    def act(transport):
        _, optimizer = train("ProxDASA", transport, stop=2)
        state = copy.deepcopy(optimizer.state_dict())
        for group in state["param_groups"]:
            group["k"] += transport.rank == 2
        optimizer.load_state_dict(state)

    for error in together(act):
        assert str(error).startswith("agent 2 and agent 0 do not have the same number of steps behind them")


def test_averaged_parameters_come_and_go():
    def act(transport):
        model, optimizer = train("ProxDASA", transport, stop=1)
        own = flat(model.parameters())
        with suppress(RuntimeError), optimizer.averaged():
            mean = flat(model.parameters())
            raise RuntimeError
        assert torch.equal(own, flat(model.parameters()))
        return own, mean

    rows, means = zip(*together(act), strict=True)
    assert not torch.equal(rows[0], rows[1])
    for mean in means:
        torch.testing.assert_close(mean, torch.stack(rows).mean(0))


def test_agents_with_other_learning_rates_are_told_when_they_meet():
    """With an α of its own an agent's gradients count more or less than the others', in another problem than theirs."""

    def act(transport):
        _, optimizer = train("ProxDASA", transport, stop=1)
        optimizer.param_groups[0]["lr"] *= 0.5 if transport.rank == 2 else 1
        with optimizer.averaged():
            raise AssertionError

    for error in together(act):
        assert str(error).startswith(
            "agent 2 and agent 0 do not have the same lr of all groups (a scheduler must not go"
        )


def test_a_closure_is_evaluated_once_with_gradients():
    model, losses = net(), []
    optimizer = alone(model.parameters())

    def closure():
        optimizer.zero_grad()
        losses.append(model(torch.ones(1, 4, dtype=torch.float64)).square().sum())
        losses[-1].backward()
        return losses[-1]

    with torch.no_grad():
        assert optimizer.step(closure) is losses[0]
    assert len(losses) == 1
    assert all(bool(optimizer.state[p]["z"].any()) for p in model.parameters())


def test_small_numbers_are_flushed_to_zero():
    """What the penalty shrinks by 1 − α in every step would stay near 1e-45 for ever, and slow every product down."""
    x = nn.Parameter(torch.ones(3))
    optimizer = alone([x], gamma=1.0, alpha=0.3, regularizer=L1(5.0))
    x.grad = torch.zeros(3)
    for _ in range(280):
        optimizer.step()
    assert x.tolist() == [0.0, 0.0, 0.0]


def alone(params, method="ProxDASA", network=None, processes=None, **settings):
    settings = {"gamma": 0.1, "alpha": 0.5} | settings
    return getattr(optim, method)(params, network or networks.ring(1), **settings, processes=processes or Alone())


def two(a, b):
    return [nn.Parameter(torch.ones(2, dtype=a)), nn.Parameter(torch.ones(3, dtype=b))]


F32, F64 = torch.float32, torch.float64
REFUSED = {
    "alpha above one": ({"alpha": 1.5}, r"lr · alpha\(0\) must lie in \(0, 1\]; for group 0 it is 1 · 1.5 = 1.5"),
    "alpha zero": ({"alpha": 0.0}, "alpha must be a positive number"),
    "lr too large": ({"params": [{"params": two(F32, F32)}, {"params": two(F32, F32), "lr": 3}]}, "group 1 .* 3 · 0.5"),
    "alpha a word": ({"alpha": "large"}, "alpha must be a positive number, .*one of proxdasa.schedules"),
    "alpha per trial": ({"alpha": proxdasa.per_trial([0.5])}, "alpha has one value per trial, but an optimizer has no"),
    "gamma negative": ({"gamma": -1.0}, "ProxDASA: gamma must be a positive, finite number; got -1.0"),
    "gamma per trial": ({"gamma": proxdasa.per_trial([1.0])}, "ProxDASA: gamma must be a positive, finite number"),
    "iterations": ({"alpha": schedules.horizon(), "iterations": 0.5}, "iterations must be a whole number"),
    "network": ({"network": networks.ring}, "network must be a network, such as networks.ring"),
    "regularizer": ({"regularizer": L1}, "the regularizer of group 0 must be a regulariser such as L1"),
    "weights per trial": (
        {"regularizer": L1(proxdasa.per_trial([0.5]))},
        "regularizer.weight has one value per trial, but an optimizer has no trials",
    ),
    "regularizer of a group": (
        {"params": [{"params": two(F32, F32)}, {"params": two(F32, F32), "regularizer": 3}]},
        "the regularizer of group 1 must be a regulariser such as L1",
    ),
    "gamma of a group": (
        {"params": [{"params": two(F32, F32)}, {"params": two(F32, F32), "gamma": 1.0}]},
        "group 1 has 'gamma', which would have no effect; groups may have params, lr and regularizer",
    ),
    "weight decay": ({"params": [{"params": two(F32, F32), "weight_decay": 0.1}]}, "group 0 has 'weight_decay', which"),
    "too few processes": (
        {"network": networks.ring(4)},
        r"ring\(4\) has 4 agents, .* is 1; start .* torchrun --standalone --nproc-per-node 4, .* networks.ring\(1\)",
    ),
    "all frozen": (
        {"params": nn.Linear(2, 2).requires_grad_(False).parameters()},
        "no parameters to train: all .* froz",
    ),
    "complex": ({"params": two(F32, torch.complex64)}, r"parameter 1, of shape \[3\], is torch.complex64; accepted"),
    "half": ({"params": two(torch.bfloat16, torch.bfloat16)}, "is torch.bfloat16; accepted: float32 or float64"),
    "mixed": ({"params": two(F32, F64)}, "torch.float64 on cpu, but parameter 0 is torch.float32 on cpu; all must"),
}


@pytest.mark.parametrize("case", REFUSED)
def test_what_does_not_fit_is_refused(case):
    changes, words = REFUSED[case]
    with pytest.raises((TypeError, ValueError), match=words):
        alone(**{"params": two(F32, F32), **changes})


def test_a_schedule_that_leaves_the_range_is_refused_in_its_step():
    x = nn.Parameter(torch.ones(3))
    optimizer = alone([x], alpha=0.5)
    x.grad = torch.ones(3)
    optimizer.step()
    optimizer.param_groups[0]["lr"] = 4.0
    with pytest.raises(ValueError, match=r"lr · alpha\(1\) must lie in \(0, 1\]; for group 0 it is 4 · 0.5 = 2"):
        optimizer.step()


def test_parameters_without_dense_gradient_are_refused():
    table = nn.Embedding(5, 2, sparse=True)
    optimizer = alone(table.parameters())
    with pytest.raises(ValueError, match=r"parameter 0, of shape \[5, 2\], has no gradient in step 0: call backward"):
        optimizer.step()
    table(torch.tensor([1])).sum().backward()
    with pytest.raises(ValueError, match=r"parameter 0, of shape \[5, 2\], has a sparse gradient"):
        optimizer.step()


def first_layer_frozen(model):
    model[0].requires_grad_(False)
    return model.parameters()


def first_layer_frozen_in_a_group(model):
    model[0].requires_grad_(False)
    return [{"params": model[0].parameters(), "regularizer": Zero()}, {"params": model[2].parameters()}]


@cache
def reference_of_frozen(method):
    """What `run` makes of the parameters that are not frozen, ``[agents, d]``."""
    p = new_problem(AGENTS, torch.float64)
    first_layer_frozen(p.model)
    settings = {name: SETTINGS[name] for name in ("regularizer", "mixing")}
    return proxdasa.run(
        getattr(proxdasa, method)(0.3, schedules.constant(0.4)), p, networks.path(AGENTS),
        iterations=STEPS, seed=SEED, exact=True, metrics=(), **settings,
    ).x[0]  # fmt: skip


@pytest.mark.parametrize("groups", [first_layer_frozen, first_layer_frozen_in_a_group])
@pytest.mark.parametrize("method", METHODS)
def test_frozen_parameters_are_no_part_of_the_row(method, groups, tmp_path):
    """They stay as they were, and the others become what `run` makes of them; saved and loaded in between."""
    x = reference_of_frozen(method)
    assert x.shape == (AGENTS, 18)
    made = together(lambda transport: interrupted(method, transport, tmp_path / str(transport.rank), groups=groups))
    for row, (model, optimizer) in zip(x, made, strict=True):
        assert torch.equal(flat(model[0].parameters()), flat(net()[0].parameters()))
        torch.testing.assert_close(flat(model[2].parameters()), row, rtol=0, atol=1e-12)
        assert {rows.numel() for rows in optimizer._rows.values()} == {18}


@pytest.mark.parametrize(("at_first", "word"), [(True, "frozen"), (False, "unfrozen")])
def test_what_is_frozen_when_the_optimizer_is_made_stays_so(at_first, word):
    model = net()
    model[0].weight.requires_grad_(at_first)
    optimizer = alone(model.parameters())
    model[0].weight.requires_grad_(not at_first)
    with pytest.raises(ValueError, match=rf"parameter 0, of shape \[5, 4\], was {word} after the optimizer was made"):
        optimizer.step()


def test_parameters_cannot_be_added_later():
    with pytest.raises(ValueError, match="make a new optimizer for others"):
        alone(net().parameters()).add_param_group({"params": [nn.Parameter(torch.ones(2))]})


def test_groups_may_be_used_again():
    groups = [{"params": list(net().parameters()), "regularizer": Zero()}]
    alone(groups)
    assert groups[0].keys() == {"params", "regularizer"}


def test_a_second_connection_is_refused(monkeypatch):
    monkeypatch.setattr(torch.distributed, "is_initialized", lambda: True)
    with pytest.raises(ValueError, match="connected already; call engines"):
        optim.ProxDASA(net().parameters(), networks.ring(1), gamma=0.1, alpha=0.5)


OTHERS = {
    "gamma": {"gamma": 0.2},
    "alpha": {"alpha": schedules.diminishing(0.4)},
    "regularizer": {"regularizer": L1(0.02)},
    "mixing": {"mixing": proxdasa.Gossip(2)},
    "network": {"network": networks.ring(AGENTS)},
    "floating-point type": {"params": two(F64, F64)},
    "parameters": {"params": two(F32, F32)[:1]},
    "method": {"method": "ProxDASAGT"},
}


@pytest.mark.parametrize("what", OTHERS)
def test_agents_that_differ_stop_before_they_start(what):
    def act(transport):
        same = {"params": two(F32, F32), "network": NETWORK, **SETTINGS}
        alone(**{**same, **(OTHERS[what] if transport.rank == 1 else {})}, processes=transport)

    for error in together(act):
        assert str(error).startswith(f"agent 1 and agent 0 do not have the same {what}; start all processes")


def test_what_is_not_finite_is_not_sent():
    models = {}

    def act(transport):
        def spoil(k, model, _):
            models[transport.rank] = model
            if k == 3 and transport.rank == 1:
                model[0].weight.data[0, 0] = torch.nan

        train("ProxDASA", transport, before=spoil)

    errors = together(act)
    assert [type(error) for error in errors] == [PeerError, NonFiniteError, PeerError]
    words = "agent 1 met a value that is not finite in step 3; a smaller gamma or alpha may help"
    assert {str(error) for error in errors} == {words}
    assert all(bool(flat(models[i].parameters()).isfinite().all()) for i in (0, 2))


def test_an_agent_that_ends_early_is_missed():
    def act(transport):
        train("ProxDASA", transport, stop=2 if transport.rank == 2 else STEPS)

    first, second, third = together(act)
    assert third is None
    assert {type(first), type(second)} == {PeerError}
    assert str(second) == f"agent 1 has no message from agent 2 in iteration 2: its process has ended; {REMEDY}"


REMEDY = optim.optimizer.REMEDY
UNEQUAL = f"agent 2 stopped after 2 steps, and agent 1 takes another; all agents must take the same steps; {REMEDY}"


def uneven(transport):
    """Agent 2 has data for two steps, and the others for more; then all want the mean."""
    model, optimizer = train("ProxDASA", transport, stop=2 if transport.rank == 2 else STEPS)
    with optimizer.averaged():
        return flat(model.parameters())


def test_unequal_numbers_of_steps_are_told_at_once_to_everybody():
    """Nobody is silent here, so nobody waits for a timeout; agent 0 is no neighbour of agent 2."""
    errors = together(uneven)
    assert {type(error) for error in errors} == {PeerError}
    assert {str(error) for error in errors} == {UNEQUAL}


@LINUX
def test_processes_with_unequal_numbers_of_steps_end_at_once(tmp_path):
    """They would wait for longer than a test may take."""
    codes, _ = fork_together(tmp_path, AGENTS, agent, tmp_path, "uneven")
    assert codes == [1] * AGENTS
    assert {(tmp_path / str(rank)).read_text(encoding="utf-8") for rank in range(AGENTS)} == {UNEQUAL}


def test_agents_find_a_number_of_steps_for_all():
    def act(transport):
        _, optimizer = train("ProxDASA", transport, stop=1)
        return optimizer.common_steps(40 - transport.rank)

    assert together(act) == [38] * AGENTS
    assert alone(net().parameters()).common_steps(7) == 7
    with pytest.raises(ValueError, match="the number of steps must be a whole number of at least 1; got 0"):
        alone(net().parameters()).common_steps(0)


def test_two_models_are_not_mixed_with_each_other():
    """One agent steps the first model where the others step the second."""

    def act(transport):
        models = [net(), net()]
        both = [
            optim.ProxDASA(model.parameters(), networks.path(AGENTS), **SETTINGS, processes=transport)
            for model in models
        ]
        for model in models:
            model(X.double()).sum().backward()
        for optimizer in both if transport.rank else reversed(both):
            optimizer.step()

    for error in together(act):
        assert "all agents must take the same steps" in str(error)


def test_a_method_that_mixes_one_vector_gets_a_tensor():
    class DPSGD(optim.Decentralised):
        method = staticmethod(lambda gamma, alpha: proxdasa.DPSGD(gamma))

    def act(transport):
        model = net()
        optimizer = DPSGD(model.parameters(), NETWORK, gamma=0.1, alpha=1.0, processes=transport)
        for _ in range(3):
            optimizer.zero_grad()
            model(X[:4].double()).square().mean().backward()
            optimizer.step()
        return flat(model.parameters())

    rows = together(act)
    assert [row.shape for row in rows] == [rows[0].shape] * AGENTS
    torch.testing.assert_close(rows[1], rows[0])  # all had the same start and data
    assert not torch.equal(rows[0], flat(net().parameters()))


def test_a_number_and_its_schedule_are_the_same_alpha():
    def act(transport):
        alpha = 0.4 if transport.rank else schedules.constant(0.4)
        return variables(*train("ProxDASA", transport, alpha=alpha))

    assert_equal(together(act), reference("ProxDASA"))


# ---------------------------------------------------------------------------------------- buffers


class Normalised(nn.Module):
    """Batch normalisation, and two constants."""

    def __init__(self):
        super().__init__()
        random = torch.Generator().manual_seed(1)
        self.layer, self.norm = nn.Linear(4, 3), nn.BatchNorm1d(3)
        for parameter in self.parameters():
            nn.init.normal_(parameter, generator=random)
        self.register_buffer("third", torch.tensor(1 / 3))
        self.register_buffer("mask", torch.tensor([True, False]))

    def forward(self, x):
        return self.norm(self.layer(x)) * self.third


def normalised(transport, **settings):
    """Train on data of one's own; agent i makes i more forward passes than it makes steps."""
    model = Normalised()
    settings = {"module": model, "buffers": "average"} | settings
    optimizer = alone(model.parameters(), network=networks.path(transport.size), processes=transport, **settings)
    rows = X[transport.rank :: transport.size] + transport.rank
    for k in range(3):
        optimizer.zero_grad()
        model(rows[k : k + 5]).square().sum().backward()
        optimizer.step()
    for _ in range(transport.rank):
        model(rows)
    return model, optimizer


def buffers_of(model):
    return {name: values.clone() for name, values in model.named_buffers()}


@pytest.mark.parametrize("policy", ["average", "local"])
def test_running_statistics_follow_the_policy(policy):
    def act(transport):
        model, optimizer = normalised(transport, buffers=policy)
        own = buffers_of(model)
        with suppress(RuntimeError), optimizer.averaged():
            inside = buffers_of(model)
            with torch.no_grad():
                score = float(model.eval()(X).sum())
            raise RuntimeError
        for name, values in buffers_of(model).items():
            assert torch.equal(values, own[name]), "restored"
        return own, inside, score

    owns, insides, scores = zip(*together(act), strict=True)
    assert len({float(own["norm.running_mean"][0]) for own in owns}) == AGENTS
    assert [int(own["norm.num_batches_tracked"]) for own in owns] == [3, 4, 5]
    for own, inside in zip(owns, insides, strict=True):
        assert torch.equal(inside["third"], own["third"])
        assert torch.equal(inside["mask"], own["mask"])
        for name in ("norm.running_mean", "norm.running_var"):
            mean = torch.stack([each[name] for each in owns]).mean(0)
            torch.testing.assert_close(inside[name], mean if policy == "average" else own[name])
        assert int(inside["norm.num_batches_tracked"]) == (
            5 if policy == "average" else int(own["norm.num_batches_tracked"])
        )
    assert (len(set(scores)) == 1) == (policy == "average"), "the averaged model scores alike everywhere"


def test_running_statistics_need_a_policy():
    words = (
        'the model\'s buffer norm.running_mean, a running .* buffers="average" .* buffers="local" .*; GroupNorm and La'
    )
    with pytest.raises(ValueError, match=words):
        normalised(Alone(), buffers=None)
    model = Normalised().eval()  # here they are constants
    optimizer = alone(model.parameters(), module=model)
    model(X[:5]).square().sum().backward()
    optimizer.step()
    with optimizer.averaged():
        assert float(model.third) == pytest.approx(1 / 3)


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"buffers": "mean"}, 'buffers must be "average" or "local"; got'),
        ({"buffers": "local", "module": None}, 'buffers="local" needs the model whose buffers they are: module=model'),
        ({"module": nn.Linear(2, 2)}, "module: Linear does not have all the parameters that are to be trained"),
    ],
)
def test_buffers_without_their_model_are_refused(settings, words):
    with pytest.raises(ValueError, match=words):
        normalised(Alone(), **settings)


def test_agents_with_other_policies_stop_before_they_start():
    for error in together(lambda t: normalised(t, buffers="local" if t.rank == 1 else "average")):
        assert str(error).startswith("agent 1 and agent 0 do not have the same buffers; start all processes")
