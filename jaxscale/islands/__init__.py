"""Islands: unequal clusters that slow links join, and the ways to train one model on them together."""

from typing import TYPE_CHECKING

from jaxscale.base.lazy import public_face

if TYPE_CHECKING:
    from jaxscale.islands.batch_shares import best_shares as best_shares
    from jaxscale.islands.batch_shares import equal_finish as equal_finish
    from jaxscale.islands.batch_shares import whole_shares as whole_shares
    from jaxscale.islands.choice.choose_fleet import best_fleet_plan as best_fleet_plan
    from jaxscale.islands.choice.islands_choice import IslandsChoice as IslandsChoice
    from jaxscale.islands.choice.islands_report import bandwidth_figure as bandwidth_figure
    from jaxscale.islands.choice.islands_report import days_figure as days_figure
    from jaxscale.islands.choice.islands_report import islands_report as islands_report
    from jaxscale.islands.choice.islands_report import time_figure as time_figure
    from jaxscale.islands.exchange import LinkTime as LinkTime
    from jaxscale.islands.exchange import hub_time as hub_time
    from jaxscale.islands.exchange import ring_time as ring_time
    from jaxscale.islands.exchange import send_times as send_times
    from jaxscale.islands.fleet import Fleet as Fleet
    from jaxscale.islands.fleet import Links as Links
    from jaxscale.islands.fleet import fleet_of as fleet_of
    from jaxscale.islands.fleet import uniform_links as uniform_links
    from jaxscale.islands.fleet_file import read_fleet as read_fleet
    from jaxscale.islands.island_plans import IslandPlans as IslandPlans
    from jaxscale.islands.island_plans import island_plans as island_plans
    from jaxscale.islands.learners import learners_goodput as learners_goodput
    from jaxscale.islands.loose import Loose as Loose
    from jaxscale.islands.loose import local_updates as local_updates
    from jaxscale.islands.loose import streaming as streaming
    from jaxscale.islands.loose import synchronous as synchronous
    from jaxscale.islands.looseness.fleet_days import LossGoal as LossGoal
    from jaxscale.islands.looseness.fleet_days import days_to_loss as days_to_loss
    from jaxscale.islands.looseness.fleet_days import loss_goal as loss_goal
    from jaxscale.islands.looseness.loose_fit import fit_loose_law as fit_loose_law
    from jaxscale.islands.looseness.loose_law import LooseLaw as LooseLaw
    from jaxscale.islands.looseness.loose_law import loose_law as loose_law
    from jaxscale.islands.measured.measured_rounds import LinkLosses as LinkLosses
    from jaxscale.islands.measured.measured_rounds import fit_link_losses as fit_link_losses
    from jaxscale.islands.measured.measured_rounds import measured_rounds as measured_rounds
    from jaxscale.islands.measured.measured_rounds import predicted_utilisation as predicted_utilisation
    from jaxscale.islands.measured.pipeline_trials import degrees_left_out as degrees_left_out
    from jaxscale.islands.measured.pipeline_trials import fit_trials as fit_trials
    from jaxscale.islands.measured.pipeline_trials import pipeline_trials as pipeline_trials
    from jaxscale.islands.measured.pipeline_trials import predicted_trials as predicted_trials
    from jaxscale.islands.modes import MODES as MODES
    from jaxscale.islands.modes import IslandJob as IslandJob
    from jaxscale.islands.modes import mode_round as mode_round
    from jaxscale.islands.modes import mode_speed as mode_speed
    from jaxscale.islands.modes import survey_fleets as survey_fleets
    from jaxscale.islands.pace import Pace as Pace
    from jaxscale.islands.pace import island_paces as island_paces
    from jaxscale.islands.pace import pace_of_rates as pace_of_rates
    from jaxscale.islands.papers.partitioned_learning import best_partition as best_partition
    from jaxscale.islands.papers.published_exchanges import compression_ratios as compression_ratios
    from jaxscale.islands.papers.published_exchanges import graph_cut_words as graph_cut_words
    from jaxscale.islands.papers.published_exchanges import local_loss_time as local_loss_time
    from jaxscale.islands.papers.published_exchanges import subnetwork_exchange as subnetwork_exchange
    from jaxscale.islands.papers.published_exchanges import subnetwork_plan as subnetwork_plan
    from jaxscale.islands.pipeline_split import best_cut as best_cut
    from jaxscale.islands.pipeline_split import divided_at_will as divided_at_will
    from jaxscale.islands.pipeline_split import pipeline_time as pipeline_time
    from jaxscale.islands.placement import best_placement as best_placement
    from jaxscale.islands.ring_order import best_order as best_order
    from jaxscale.islands.round_time import RoundTime as RoundTime
    from jaxscale.islands.round_time import fleet_round as fleet_round
    from jaxscale.islands.round_time import required_bandwidth as required_bandwidth
    from jaxscale.islands.round_time import round_of as round_of

public_face(__name__)
