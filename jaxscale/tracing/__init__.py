"""Tracing of workloads: kernels, dimension classes and stored values of a step, from the jaxpr of a function."""

from typing import TYPE_CHECKING

from jaxscale.base.lazy import public_face

if TYPE_CHECKING:
    from jaxscale.tracing.plan_time import KernelRows as KernelRows
    from jaxscale.tracing.plan_time import kernel_rows as kernel_rows
    from jaxscale.tracing.plan_time import traced_kernel_times as traced_kernel_times
    from jaxscale.tracing.traced_workload import Workload as Workload
    from jaxscale.tracing.traced_workload import load_workload as load_workload
    from jaxscale.tracing.tracer import trace as trace
    from jaxscale.tracing.work_rules import custom_call as custom_call

public_face(__name__)
