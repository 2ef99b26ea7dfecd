"""What the code can print is printed by the code."""

from __future__ import annotations

import importlib.util

from tests.rig_tools import ROOT


def test_the_reference_page_is_what_the_code_says() -> None:
    path = ROOT / "tools" / "write_reference.py"
    spec = importlib.util.spec_from_file_location("write_reference", path)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    assert module.TARGET.read_text("utf-8") == module.text(), "run python tools/write_reference.py"


def test_every_setting_says_what_it_is() -> None:
    from dsh_tasks.settings import Settings

    assert [name for name, field in Settings.model_fields.items() if not field.description] == []
