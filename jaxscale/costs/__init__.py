"""Cost terms of a step, one physical effect per module: functions of model, plan, cluster, coefficients, in seconds."""
