"""For authors of methods: what every method of the library obeys, as a check to call on one's own.

    from proxdasa.testing import check_algorithm

    def test_my_method():
        check_algorithm(MyMethod(gamma=0.1))

It takes a second, needs no pytest, and ends with a report of the laws that were checked, or with a `LawError` that says
for each broken law what was expected, what was seen and what is usually behind it.
"""

from proxdasa.testing.check import LawError, Report, check_algorithm

__all__ = ["LawError", "Report", "check_algorithm"]
