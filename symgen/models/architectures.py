"""The architectures of the registry."""

from collections.abc import Mapping
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from symgen.data.images import SMALL
from symgen.data.sources import import_transformers
from symgen.names import refuse_unknown

# Names of torchvision's lists of layers.
LETTERS = {"vgg11": "A", "vgg16": "D", "vgg19": "E"}
# VGG halves images five times.
SMALLEST_VGG = 32


class SmallCNN(nn.Module):
    """Three convolutions and a linear layer; trains on digits in seconds."""

    def __init__(self, classes: int, channels: int, image_size: int, width: int = 16):
        super().__init__()
        self.conv1 = nn.Conv2d(channels, width, 3, padding=1)
        self.relu1 = nn.ReLU()
        self.conv2 = nn.Conv2d(width, 2 * width, 3, padding=1)
        self.relu2 = nn.ReLU()
        self.conv3 = nn.Conv2d(2 * width, 2 * width, 3, padding=1)
        self.relu3 = nn.ReLU()
        self.pool = nn.MaxPool2d(2)
        self.linear = nn.Linear(2 * width * (image_size // 4) ** 2, classes)

    def forward(self, x: Tensor) -> Tensor:
        """Return the logits (sample, class)."""
        x = self.pool(self.relu1(self.conv1(x)))
        x = self.pool(self.relu2(self.conv2(x)))
        return self.linear(self.relu3(self.conv3(x)).flatten(1))


class _Block(nn.Module):
    """Two convolutions with a shortcut. A block that adds channels halves the image."""

    def __init__(self, inputs: int, width: int):
        super().__init__()
        stride = 2 if width > inputs else 1
        self.conv1 = nn.Conv2d(inputs, width, 3, stride, 1, bias=False)
        self.bn1 = nn.BatchNorm2d(width)
        self.relu1 = nn.ReLU()
        self.conv2 = nn.Conv2d(width, width, 3, 1, 1, bias=False)
        self.bn2 = nn.BatchNorm2d(width)
        self.relu2 = nn.ReLU()
        self.added = width - inputs

    def forward(self, x: Tensor) -> Tensor:
        y = self.relu1(self.bn1(self.conv1(x)))
        y = self.bn2(self.conv2(y))
        if self.added:
            # The shortcut without parameters: subsampled, new channels zero (He et al., option A).
            x = F.pad(x[:, :, ::2, ::2], (0, 0, 0, 0, 0, self.added))
        return self.relu2(y + x)


class ResNetCIFAR(nn.Module):
    """The residual network of depth 6n + 2 for small images (He et al. 2016, Section 4.2)."""

    def __init__(self, classes: int, channels: int, image_size: int, depth: int = 20):
        super().__init__()
        self.conv1 = nn.Conv2d(channels, 16, 3, padding=1, bias=False)
        self.bn1 = nn.BatchNorm2d(16)
        self.relu = nn.ReLU()
        self.blocks = nn.Sequential()
        inputs = 16
        for width in (16, 32, 64):
            for _ in range((depth - 2) // 6):
                self.blocks.append(_Block(inputs, width))
                inputs = width
        self.linear = nn.Linear(64, classes)
        for module in self.modules():
            if isinstance(module, nn.Conv2d):
                nn.init.kaiming_normal_(module.weight, mode="fan_out")

    def forward(self, x: Tensor) -> Tensor:
        """Return the logits (sample, class)."""
        x = self.relu(self.bn1(self.conv1(x)))
        return self.linear(self.blocks(x).mean((2, 3)))


def resnet(name: str, classes: int, channels: int, image_size: int, **options: Any) -> nn.Module:
    """Return one of torchvision's residual networks."""
    import torchvision

    model = getattr(torchvision.models, name)(num_classes=classes, **options)
    if image_size <= SMALL:
        # The stem for small images. Above 32 pixels it keeps one of its two halvings.
        stride = 1 if image_size <= 32 else 2
        model.conv1 = nn.Conv2d(channels, 64, 3, stride, 1, bias=False)
        model.maxpool = nn.Identity()
    elif channels != 3:
        model.conv1 = nn.Conv2d(channels, 64, 7, 2, 3, bias=False)
    nn.init.kaiming_normal_(model.conv1.weight, mode="fan_out", nonlinearity="relu")
    return model


def vgg(
    name: str, classes: int, channels: int, image_size: int, batch_norm: bool = False,
    width: int = 64, **options: Any,
) -> nn.Module:  # fmt: skip
    """Return one of torchvision's VGG networks, all layers scaled to a width of the first."""
    from torchvision import models

    if image_size < SMALLEST_VGG:
        raise ValueError(
            f"images have {image_size} pixels per side, but {name} halves them five times; "
            f"expected {SMALLEST_VGG} or more: load_dataset(..., size={SMALLEST_VGG}), or a "
            "network such as cnn or resnet20"
        )
    if image_size > SMALL and channels == 3 and width == 64:
        maker = getattr(models, f"{name}_bn" if batch_norm else name)
        return maker(num_classes=classes, **options)
    published = models.vgg.cfgs[LETTERS[name]]
    layers = [x if isinstance(x, str) else x * width // 64 for x in published]
    with torch.device("meta"):
        features = models.vgg.make_layers(layers, batch_norm)
        model = models.VGG(features, classes, init_weights=False, **options)
    model.features = nn.Sequential(nn.Conv2d(channels, width, 3, padding=1), *features[1:])
    # The published classifier expects 7 x 7 positions; small images leave 1 x 1 or 2 x 2.
    side = max(1, min(7, image_size // 32))
    hidden = (4096 if image_size > SMALL else 512) * width // 64
    drop = options.get("dropout", 0.5)
    model.avgpool = nn.AdaptiveAvgPool2d(side)
    model.classifier = nn.Sequential(
        nn.Linear(512 * width // 64 * side**2, hidden), nn.ReLU(), nn.Dropout(drop),
        nn.Linear(hidden, hidden), nn.ReLU(), nn.Dropout(drop),
        nn.Linear(hidden, classes),
    )  # fmt: skip
    model = model.to_empty(device=torch.get_default_device())
    for module in model.modules():
        if isinstance(module, nn.BatchNorm2d):
            module.reset_parameters()
        elif isinstance(module, nn.Conv2d | nn.Linear):
            mode = "fan_out" if isinstance(module, nn.Conv2d) else "fan_in"
            nn.init.kaiming_normal_(module.weight, mode=mode, nonlinearity="relu")
            if module.bias is not None:
                nn.init.zeros_(module.bias)
    return model


class Logits(nn.Module):
    """A classifier of `transformers` whose forward returns plain logits.

    Args:
        model: classifier, such as ``BertForSequenceClassification``, or an image classifier.
    """

    model: Any

    def __init__(self, model: nn.Module):
        super().__init__()
        self.model = model

    def forward(self, x: Mapping[str, Tensor] | Tensor | None = None, **inputs: Any) -> Tensor:
        """Return the logits (sample, class).

        Args:
            x: images; or input_ids (sample, token); or a mapping of `inputs`.
            **inputs: inputs of the model: input_ids or inputs_embeds, and attention_mask.
        """
        if x is not None:
            name = "pixel_values" if getattr(x, "ndim", 2) == 4 else "input_ids"
            inputs |= x if isinstance(x, Mapping) else {name: x}
        return self.model(**inputs).logits

    def get_input_embeddings(self) -> nn.Module:
        """Return the layer that embeds tokens."""
        return self.model.get_input_embeddings()


def bert(
    layers: int, hidden: int, classes: int, vocabulary: int = 30522, pad_token_id: int = 0,
    **options: Any,
) -> nn.Module:  # fmt: skip
    """Return a BERT classifier of that size, with untrained weights."""
    transformers = import_transformers()
    names = [*transformers.BertConfig().to_dict(), "num_labels"]
    refuse_unknown("setting of BertConfig", options, names)
    shape = {
        "vocab_size": vocabulary,
        "hidden_size": hidden,
        "num_hidden_layers": layers,
        "num_attention_heads": max(2, hidden // 64),
        "intermediate_size": 4 * hidden,
        "num_labels": classes,
        "pad_token_id": pad_token_id,
    }
    config = transformers.BertConfig(**{**shape, **options})
    return Logits(transformers.BertForSequenceClassification(config))
