"""The built-in destinations: what `extension.type` of a MeshExternalService names without another package.

Others come through the entry point `koguma.destinations` and are made in the same way.
"""

from koguma.kinds.destinations import aws_lambda
from koguma.model.destination import DestinationPlugin

DESTINATIONS: tuple[DestinationPlugin, ...] = (aws_lambda.PLUGIN,)
