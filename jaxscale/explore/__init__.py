"""Interactive web page of `jaxscale explore`: inputs, results, charts and server."""

from typing import TYPE_CHECKING

from jaxscale.base.lazy import public_face

if TYPE_CHECKING:
    from jaxscale.explore.page_state import PageInputs as PageInputs
    from jaxscale.explore.page_state import PageState as PageState
    from jaxscale.explore.page_state import page_inputs as page_inputs
    from jaxscale.explore.page_work import PageView as PageView
    from jaxscale.explore.page_work import page_view as page_view

public_face(__name__)
