"""Which definitions are computed together, in which loops, and where their values live."""

from braze.schedule.plan import schedule

__all__ = ["schedule"]
