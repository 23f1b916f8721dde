"""What people look at: the page, the tables in the terminal, TensorBoard files. No torch here."""

from narrowgate.report.page import write_report
from narrowgate.report.run_page import run_facts, write_run_page
from narrowgate.report.tensorboard import export_tensorboard
from narrowgate.report.terminal import print_verdict

__all__ = [
    "export_tensorboard",
    "print_verdict",
    "run_facts",
    "write_report",
    "write_run_page",
]
