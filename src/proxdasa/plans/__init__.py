"""Plans: what graph and theory predict before a run, and whether a run meets the conditions of the theory."""

from proxdasa.plans.plan import MixingPlan, Plan, plan
from proxdasa.plans.run_plans import departure, settings
from proxdasa.plans.side_by_side import weightings
from proxdasa.plans.smoothness import estimate_lipschitz

__all__ = ["MixingPlan", "Plan", "departure", "estimate_lipschitz", "plan", "settings", "weightings"]
