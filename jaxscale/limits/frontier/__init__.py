"""The analytic frontier model of training time, which is not the calibrated one."""
