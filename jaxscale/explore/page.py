"""Page as a marimo notebook: controls, inputs and results, computed by the other modules of the folder."""

import marimo  # pyright: ignore[reportMissingImports]

app = marimo.App(width="full", app_title="jaxscale explore", css_file="page.css", html_head_file="page_head.html")


@app.cell
def _():
    import marimo as mo  # pyright: ignore[reportMissingImports]

    from jaxscale.explore import page_controls
    from jaxscale.explore.page_state import served_inputs
    from jaxscale.explore.page_work import prepare_views

    return mo, page_controls, prepare_views, served_inputs


@app.cell
def _(mo, page_controls, served_inputs):
    inputs = served_inputs()
    opening, refusal = page_controls.opening_state(mo.query_params().to_dict())
    choices = mo.ui.dictionary(page_controls.choices(mo.ui, inputs, opening))
    sliders = mo.ui.dictionary(page_controls.sliders(mo.ui, opening))
    tab = page_controls.tab_choice(mo.ui, opening)
    return choices, inputs, refusal, sliders, tab


@app.cell
def _(choices, mo, page_controls, sliders):
    mo.sidebar(page_controls.arranged(mo, choices, sliders), width="23rem")


@app.cell
def _(choices, inputs, page_controls, refusal, sliders, tab):
    shown = page_controls.shown(inputs, {**choices.value, **sliders.value, "tab": tab.value}, refusal)
    return (shown,)


@app.cell
def _(mo, page_controls, shown):
    page_controls.tell_address(mo.query_params(), shown.state)
    mo.vstack([mo.md("# jaxscale explore"), mo.Html(page_controls.headline_html(shown))])


@app.cell
def _(mo, tab):
    mo.vstack([tab])


@app.cell
def _(mo, page_controls, shown):
    mo.stop(shown.view is None)
    page_controls.body(mo, shown)


@app.cell
def _(mo, page_controls, prepare_views, shown):
    mo.stop(shown.view is None)
    # The browser receives this view first; the next views are prepared meanwhile.
    prepare_views(shown.view)
    page_controls.exports(mo, shown)


if __name__ == "__main__":
    app.run()
