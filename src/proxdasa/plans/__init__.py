"""Plans: what graph and theory tell before a run is made, and whether a run keeps to the theory's conditions."""

from proxdasa.plans.comparison import weightings
from proxdasa.plans.plan import MixingPlan, Plan, plan
from proxdasa.plans.runs import departure, settings
from proxdasa.plans.smoothness import estimate_lipschitz

__all__ = ["MixingPlan", "Plan", "departure", "estimate_lipschitz", "plan", "settings", "weightings"]
