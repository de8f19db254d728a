"""Conditions: what goes wrong in a network. Links fail, agents are out or slow, and messages are disturbed or late.

    proxdasa.run(..., conditions=[conditions.LinkLoss(0.3), conditions.Outages(mean_up=200, mean_down=20)])

Links. In each round the links that are up give a matrix W_r. The weight of a missing link goes back to both its ends,

    W_r = W + Σ_{(i, j) missing} w_ij (e_i − e_j)(e_i − e_j)ᵀ,

so that W_r stays symmetric and doubly stochastic: every round preserves means, and gradient tracking stays exact. A
real network needs an acknowledgement of each message for this: an end that does not know that its message was lost
cannot keep its weight.

Agents. An agent that is out keeps its whole state, draws no sample and has no link in that iteration.

Messages. They may arrive with noise, which preserves means in expectation only, or late, which does not preserve them.

Events are named by (seed, trial, link or agent, round or iteration) like samples, so they do not depend on the engine
or on the number of processes, and a resumed run sees the same ones. Trials see different events.
"""

from proxdasa.conditions.agent_conditions import Downtimes, Outages, Participation, Stragglers
from proxdasa.conditions.events import Condition
from proxdasa.conditions.link_conditions import Bursts, LinkLoss
from proxdasa.conditions.message_conditions import MessageNoise, StaleMessages, TrackerWarning
from proxdasa.conditions.weather import Weather

ALL = (LinkLoss, Bursts, Outages, Downtimes, Participation, Stragglers, MessageNoise, StaleMessages)

__all__ = [
    "ALL",
    "Bursts",
    "Condition",
    "Downtimes",
    "LinkLoss",
    "MessageNoise",
    "Outages",
    "Participation",
    "StaleMessages",
    "Stragglers",
    "TrackerWarning",
    "Weather",
]
