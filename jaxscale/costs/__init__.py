"""Cost terms of a step [s], a module for each physical effect: functions of model, plan, cluster and coefficients."""
