"""The example in docs/how-to/use-a-framework.md runs in a new project, with a scripted model."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support import ROOT

MODEL = """\
from langchain_core.language_models.fake_chat_models import GenericFakeChatModel
from langchain_core.messages import AIMessage


class Script(GenericFakeChatModel):
    def bind_tools(self, *_, **__):
        return self


refund = {"name": "refund_order", "args": {"order_id": "O-77", "amount": 120}, "id": "call-1"}
model = Script(messages=iter([AIMessage("", tool_calls=[refund]), AIMessage("O-77 is paid back.")]))
"""


@pytest.mark.opa
@pytest.mark.process
def test_example_of_the_page_pauses_and_resumes(tmp_path: Path) -> None:
    page = (ROOT / "docs/how-to/use-a-framework.md").read_text(encoding="utf-8")
    (example,) = re.findall(r"```python\n(.*?)```", page, re.DOTALL)
    env = {**os.environ, "PYTHONPATH": str(ROOT)}
    subprocess.run([sys.executable, "-m", "pdp", "init", "desk"], cwd=tmp_path, env=env, check=True)
    (tmp_path / "desk/model.py").write_text(MODEL)
    (tmp_path / "desk/app.py").write_text(example)

    told = subprocess.run(
        [sys.executable, "app.py"], cwd=tmp_path / "desk", env=env, capture_output=True, text=True, check=False
    )

    assert (told.stdout, told.returncode) == ("waits for ['desk.lead']\nO-77 is paid back.\n", 0), told.stderr
