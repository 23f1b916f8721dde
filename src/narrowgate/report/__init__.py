"""What people look at: the page, the tables in the terminal, TensorBoard files. No torch here."""

from narrowgate.report.page import write_report
from narrowgate.report.terminal import print_verdict

__all__ = ["print_verdict", "write_report"]
