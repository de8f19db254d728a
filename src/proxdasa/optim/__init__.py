"""The methods as torch optimizers, for training loops of your own: each process is one agent.

    processes = engines.connect() or engines.Alone()  # the processes that torchrun or mpiexec started, if any
    optimizer = ProxDASA(model.parameters(), networks.ring(processes.size), regularizer=L1(1e-4),
                         gamma=0.1, alpha=0.3, processes=processes)
    for inputs, targets in batches:  # of this agent's own data
        optimizer.zero_grad()
        loss(model(inputs), targets).backward()
        optimizer.step()
    with optimizer.averaged():
        ...  # here the model is the mean of all agents' models

`step` takes the gradient that ``backward()`` left and exchanges messages with the agent's neighbours. All agents must
take the same number of steps; if their data give unequal numbers of batches, `common_steps` returns a number that suits
all. Initial parameters are not sent to other agents: for a common start, seed all processes alike before the model is
created.

Parameters that are frozen (``requires_grad`` is False) when the optimizer is created are left unchanged and not sent.

The optimizer sees buffers only through ``module=model``. For a model with batch normalisation choose what `averaged`
does with its running statistics: ``buffers="average"`` or ``buffers="local"``.

A parameter group may have a regularizer of its own: ``{"params": biases, "regularizer": Zero()}``. It belongs to the
optimizer and is not part of the saved state.

Learning-rate schedulers act on α: every group has an ``lr``, initially 1, and in step k its α_k is lr · alpha(k), which
must lie in (0, 1]. γ stays as it is.

`state_dict` holds the agent's averages and its number of steps. Every agent saves and loads its own, together with its
model.
"""

from proxdasa.optim.optimizer import Decentralised, ProxDASA, ProxDASAGT

__all__ = ["Decentralised", "ProxDASA", "ProxDASAGT"]
