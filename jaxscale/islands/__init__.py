"""Islands: training of a model on several unequal clusters joined by slow links."""

from typing import TYPE_CHECKING

from jaxscale.base.lazy import public_face

if TYPE_CHECKING:
    from jaxscale.islands.choose_fleet import best_fleet_plan as best_fleet_plan
    from jaxscale.islands.fleet import Fleet as Fleet
    from jaxscale.islands.fleet import Links as Links
    from jaxscale.islands.fleet import fleet_of as fleet_of
    from jaxscale.islands.fleet import read_fleet as read_fleet
    from jaxscale.islands.fleet import stated_slow_loss as stated_slow_loss
    from jaxscale.islands.fleet import uniform_links as uniform_links
    from jaxscale.islands.fleet_days import LooseLaw as LooseLaw
    from jaxscale.islands.fleet_days import LossGoal as LossGoal
    from jaxscale.islands.fleet_days import loose_law as loose_law
    from jaxscale.islands.fleet_days import loss_goal as loss_goal
    from jaxscale.islands.further_modes import gradient_delay as gradient_delay
    from jaxscale.islands.further_modes import published_modes as published_modes
    from jaxscale.islands.further_modes import tokens_factor as tokens_factor
    from jaxscale.islands.island_plans import IslandPlans as IslandPlans
    from jaxscale.islands.island_plans import Pace as Pace
    from jaxscale.islands.island_plans import best_shares as best_shares
    from jaxscale.islands.island_plans import equal_finish as equal_finish
    from jaxscale.islands.island_plans import island_paces as island_paces
    from jaxscale.islands.island_plans import island_plans as island_plans
    from jaxscale.islands.island_plans import pace_of_rates as pace_of_rates
    from jaxscale.islands.island_plans import whole_shares as whole_shares
    from jaxscale.islands.islands_choice import IslandsChoice as IslandsChoice
    from jaxscale.islands.islands_report import bandwidth_figure as bandwidth_figure
    from jaxscale.islands.islands_report import days_figure as days_figure
    from jaxscale.islands.islands_report import islands_report as islands_report
    from jaxscale.islands.islands_report import time_figure as time_figure
    from jaxscale.islands.modes import MODES as MODES
    from jaxscale.islands.modes import IslandJob as IslandJob
    from jaxscale.islands.modes import mode_speed as mode_speed
    from jaxscale.islands.modes import survey_fleets as survey_fleets
    from jaxscale.islands.pipeline_split import best_cut as best_cut
    from jaxscale.islands.pipeline_split import best_order as best_order
    from jaxscale.islands.pipeline_split import divided_at_will as divided_at_will
    from jaxscale.islands.pipeline_split import pipeline_time as pipeline_time
    from jaxscale.islands.round_time import LinkTime as LinkTime
    from jaxscale.islands.round_time import Loose as Loose
    from jaxscale.islands.round_time import RoundTime as RoundTime
    from jaxscale.islands.round_time import fleet_round as fleet_round
    from jaxscale.islands.round_time import local_updates as local_updates
    from jaxscale.islands.round_time import required_bandwidth as required_bandwidth
    from jaxscale.islands.round_time import ring_time as ring_time
    from jaxscale.islands.round_time import round_of as round_of
    from jaxscale.islands.round_time import send_times as send_times
    from jaxscale.islands.round_time import streaming as streaming
    from jaxscale.islands.round_time import synchronous as synchronous

public_face(__name__)
