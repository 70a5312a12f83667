"""Many trainings of one kind: which settings are best, and how sure that is over seeds."""

from unrolled.sweeps.plan import Sweep, Trial, read_sweep, trials_of
from unrolled.sweeps.running import Result, run_trials
from unrolled.sweeps.table import summary

__all__ = ["Result", "Sweep", "Trial", "read_sweep", "run_trials", "summary", "trials_of"]
