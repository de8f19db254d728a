"""Checks for your own methods: the laws that every method of the library keeps.

    from proxdasa.testing import check_algorithm

    def test_my_method():
        check_algorithm(MyMethod(gamma=0.1))

The check takes a second or two and does not need pytest. It returns a report of the laws that were checked, or raises a
`LawError` that says for each broken law what was expected, what was observed and what usually causes it.
"""

from proxdasa.testing.check import LawError, Report, check_algorithm

__all__ = ["LawError", "Report", "check_algorithm"]
