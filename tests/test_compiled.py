"""Steps translated by torch's compiler: the same run, but for rounding.

Compiling takes time; tests/test_blocks.py tests what the compiler is given, for all methods.
"""

import dataclasses

import numpy as np
import pytest
import torch

import proxdasa
from proxdasa import networks, regularizers, schedules
from proxdasa.data import from_tensors
from proxdasa.problems import Supervised, models
from proxdasa.runs.compiling import CompileWarning
from proxdasa.runs.setup import Setup
from tests import architectures
from tests.processes import COMPILER

METHODS = {
    "prox-dasa": proxdasa.ProxDASA(0.3, schedules.diminishing(0.3)),
    # A branch every third iteration, and full gradients in it.
    "prox-gt-sr-e": proxdasa.ProxGTSRE(0.1, period=3),
    "prox-dasa-gt": proxdasa.ProxDASAGT(proxdasa.per_trial([0.3, 0.1]), schedules.diminishing(0.3)),
    "deepstorm-v2": proxdasa.DeepStormV2(schedules.cube_root(0.3, 2.0), beta=1.0),
    "sppdm": proxdasa.SPPDM(gamma=3.0, c=1.0, kappa=0.1, beta=0.9, alpha=0.1, momentum=schedules.nesterov()),
}

pytestmark = [
    COMPILER,
    pytest.mark.filterwarnings("ignore::DeprecationWarning"),  # of torch's own parts, as it imports its compiler
]

SLOW = [pytest.param(name, marks=pytest.mark.slow) for name in list(METHODS)[1:]]


@pytest.fixture(autouse=True)
def compiled_once():
    """Torch neither stores its headers in a form that later compilations read faster, nor first compiles a file to see
    whether vector instructions work, nor has the compiler optimise; all this takes longer than it saves one graph."""
    from torch._inductor import config  # noqa: PLC0415

    quicker = {"cpp_cache_precompile_headers": False, "cpp.vec_isa_ok": True, "aot_inductor.debug_compile": True}
    with config.patch({name: value for name, value in quicker.items() if hasattr(config, name)}):
        yield


def setup(name):
    rng = np.random.default_rng(0)
    x = torch.tensor(rng.normal(size=(60, 5)), dtype=torch.float32)
    problem = Supervised(
        lambda: models.mlp(5, 4, 3), from_tensors(x, torch.tensor(rng.integers(0, 3, 60))), agents=3, batch_size=2
    )
    return Setup(
        METHODS[name], problem, networks.ring(3), regularizer=regularizers.L1(1e-3),
        iterations=20, trials=2, observe_every=2,
    )  # fmt: skip


@pytest.mark.parametrize("name", ["prox-dasa", *SLOW])
def test_compiled_steps_are_the_steps(name):
    plain = setup(name).run()
    compiled = dataclasses.replace(setup(name), compile=True).run()
    torch.testing.assert_close(compiled.x, plain.x, rtol=1e-4, atol=1e-6)
    for ours, theirs in zip(compiled.records, plain.records, strict=True):
        for cost in ("samples", "gradients", "full_gradients", "rounds", "vectors", "epochs"):
            assert ours[cost] == theirs[cost]
    assert compiled.config["facts"]["compiled"] is True


@pytest.mark.slow
def test_a_loop_over_networks_with_dropout_is_left_as_it_is():
    """Compiled networks would draw masks of their own."""
    problem = architectures.problem("functional dropout", batch_size=2)
    plain = Setup(METHODS["prox-dasa"], problem, networks.ring(3), iterations=10, metrics=())
    with pytest.warns(CompileWarning):
        compiled = dataclasses.replace(plain, compile=True).run()
    assert torch.equal(compiled.x, plain.run().x)
