"""Images as networks read them: the layer that is masked, and the variable of each position."""

from typing import Any

import torch
from jaxtyping import Int
from torch import Tensor, nn

from symgen.device import device_of, dtype_of
from symgen.masking.hooks import Network, describe, feature_maps, layer_output
from symgen.masking.mask_values import MaskValue
from symgen.masking.states import Prepared
from symgen.masking.variables import ImageVariables, check_axes


def prepare_images(
    model: nn.Module,
    x: Any,
    target: Int[Tensor, " sample"],
    variables: ImageVariables,
    mask_value: MaskValue,
) -> Prepared:
    """Return the samples of an image network; see `masked_outputs`."""
    if not (isinstance(x, Tensor) and x.dim() == 4 and x.is_floating_point()):
        raise ValueError(
            f"x is {describe(x)}; expected floating images (sample, channel, height, width) as a "
            "tensor"
        )
    check_axes(x.shape)
    x = x.to(dtype_of(model))
    where = device_of(model)
    layer = mask_value.layer
    first = x[:1].to(where)
    layout = torch.channels_last
    try:
        maps = feature_maps(model, first.contiguous(memory_format=layout))
    except RuntimeError:  # Networks with x.view(len(x), -1) refuse the faster layout.
        layout = torch.contiguous_format
        maps = feature_maps(model, first.contiguous())
    shape = layer_output(model, layer, first.contiguous(memory_format=layout)).shape
    if layer is not None and layer not in maps:
        raise ValueError(
            f"layer {layer!r} returns {tuple(shape)} for one image; expected None, to mask "
            f"the image, or a layer that returns (sample, channel, height, width): {maps[:8]}"
        )
    return Prepared(
        Network(model, layer),
        x,
        variables.owners(*shape[2:])[:, None],
        mask_value.value,
        variables.n,
        target,
        where,
        layout=layout,
    )
