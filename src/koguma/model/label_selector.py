"""Label selectors of Kubernetes, as objects write them: `matchLabels` and `matchExpressions`."""

from collections.abc import Mapping

from koguma.model.schema import Json


def selects(selector: Json, labels: Mapping[str, str]) -> bool:
    """Whether a selector chooses these labels; an empty one does, one that cannot be read does not."""
    if not isinstance(selector, dict):
        return False
    match_labels, expressions = selector.get("matchLabels") or {}, selector.get("matchExpressions") or []
    if not isinstance(match_labels, dict) or not isinstance(expressions, list):
        return False
    return all(labels.get(name) == value for name, value in match_labels.items()) and all(
        _holds(expression, labels) for expression in expressions
    )


def _holds(expression: Json, labels: Mapping[str, str]) -> bool:
    if not isinstance(expression, dict):
        return False
    key, written = expression.get("key"), expression.get("values")
    if not isinstance(key, str):
        return False
    values = [each for each in written if isinstance(each, str)] if isinstance(written, list) else []
    match expression.get("operator"):
        case "In":
            return labels.get(key) in values
        case "NotIn":
            return labels.get(key) not in values
        case "Exists":
            return key in labels
        case "DoesNotExist":
            return key not in labels
    return False
