"""Training steps of well-known models in plain JAX: each function returns a step and the shapes of its arguments."""

from typing import TYPE_CHECKING

from jaxscale.base.lazy import public_face

if TYPE_CHECKING:
    from jaxscale.examples.decoder_steps import decoder as decoder
    from jaxscale.examples.other_steps import dit as dit
    from jaxscale.examples.other_steps import graph_network as graph_network
    from jaxscale.examples.other_steps import mamba2 as mamba2
    from jaxscale.examples.recommendation_steps import dlrm as dlrm
    from jaxscale.examples.recommendation_steps import square_dlrm as square_dlrm
    from jaxscale.examples.vision_steps import resnet50 as resnet50
    from jaxscale.examples.vision_steps import retinanet as retinanet
    from jaxscale.examples.vision_steps import unet3d as unet3d

public_face(__name__)
