"""The page itself, a marimo notebook: controls, one state, its figures. All work is done by the modules beside it."""

import marimo  # pyright: ignore[reportMissingImports]

app = marimo.App(width="full", app_title="jaxscale explore")


@app.cell
def _():
    import marimo as mo  # pyright: ignore[reportMissingImports]

    from jaxscale.explore import page_controls, page_figures
    from jaxscale.explore.page_inputs import served_inputs

    return mo, page_controls, page_figures, served_inputs


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
def _(mo, page_controls, page_figures, shown):
    mo.stop(shown.view is None)
    picture = page_controls.picture(shown)
    mo.vstack(
        [
            *([mo.Html(picture.html())] if picture else []),
            mo.Html(f'<div class="wide">{page_figures.tab_html(shown.view, shown.state.tab)}</div>'),
        ]
    )
    return (picture,)


@app.cell
def _(mo, page_controls, picture, shown):
    page_controls.exports(mo, shown, picture)


if __name__ == "__main__":
    app.run()
