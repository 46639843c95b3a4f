"""Loop programs, schedules and generated kernels."""
