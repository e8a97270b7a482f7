"""docs/models.md is what the table of families says."""

import model_table


def test_models_page_is_current():
    """Families, kinds and figures are those of the readers; `make help-texts` writes it anew."""
    assert model_table.render() == model_table.PAGE.read_text(encoding="utf-8")


def test_every_family_has_a_line():
    """No family is left out, none stands there twice."""
    page = model_table.render()

    assert {1} == {page.count(f"\n| `{name}`") for name in model_table.FAMILIES}
