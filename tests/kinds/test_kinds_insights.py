"""Insights: counters are numbers, in either spelling."""

from kinds_check import violations


def test_a_counter_is_a_number_in_either_spelling_and_nothing_else() -> None:
    spec = "{subscriptions: [{status: {total: {responsesSent: [3], responsesRejected: '3'}}}]}"
    assert violations("DataplaneInsight", spec) == [
        ("subscriptions[0].status.total.responsesSent", 'in body must be of type integer or string: "array"')
    ]
