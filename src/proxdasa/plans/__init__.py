"""Plans: what the graph and the theory predict before a run, and whether a run meets the conditions of the theory."""

from typing import TYPE_CHECKING

from proxdasa.lazy_names import lazy_names

if TYPE_CHECKING:
    from proxdasa.plans.planning import MixingPlan, Plan, plan
    from proxdasa.plans.run_plans import departure, protocol, settings
    from proxdasa.plans.side_by_side import weightings
    from proxdasa.plans.smoothness import estimate_lipschitz
else:
    __getattr__, __dir__ = lazy_names(__name__)

__all__ = ["MixingPlan", "Plan", "departure", "estimate_lipschitz", "plan", "protocol", "settings", "weightings"]
