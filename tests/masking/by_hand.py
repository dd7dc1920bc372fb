"""Masking by hand, one sample and one state at a time: the reference of the tests."""

import torch


def equal(v, expected, atol=1e-5):
    """Assert that two results differ by rounding only."""
    torch.testing.assert_close(v, expected, atol=atol, rtol=0)


def odds(logits, label):
    """log p / (1 - p) as it is defined, in float64."""
    p = logits.double().softmax(-1)
    return torch.log(p[label]) - torch.log(p.sum() - p[label])


@torch.no_grad()
def of_images(model, x, target, variables, mask_value):
    """v of images, with patches of a layer's first output (or of the image) replaced in place."""

    def masked(output, sample, state):
        output = output.clone()
        value = mask_value.value.expand(output[0].shape)
        boxes = variables.boxes(*output.shape[2:])[sample].tolist()
        for i, (left, top, right, bottom) in enumerate(boxes):
            if not state >> i & 1:
                output[0, :, top:bottom, left:right] = value[:, top:bottom, left:right]
        return output

    v = torch.empty(len(x), 2**variables.n, dtype=torch.float64)
    for sample, state in torch.cartesian_prod(*map(torch.arange, v.shape)).tolist():
        image, calls = x[sample : sample + 1].clone(), []

        def once(module, arguments, output, sample=sample, state=state, calls=calls):
            calls.append(1)
            return masked(output, sample, state) if len(calls) == 1 else output

        if mask_value.layer is None:
            output = model(masked(image, sample, state))
        else:
            handle = model.get_submodule(mask_value.layer).register_forward_hook(once)
            output = model(image)
            handle.remove()
        logits = output["logits"] if isinstance(output, dict) else output
        v[sample, state] = odds(logits[0], int(target[sample]))
    return v


@torch.no_grad()
def of_texts(run, embedding, ids, target, groups, value):
    """v of texts, with rows of the embedded text replaced.

    Args:
        run: from an embedded text (1, position, size) and the sample's number to its logits.
        ids: one text per sample, not padded.
    """
    v = torch.empty(len(ids), 2 ** len(groups[0]), dtype=torch.float64)
    for sample, state in torch.cartesian_prod(*map(torch.arange, v.shape)).tolist():
        embedded = embedding(ids[sample][None]).clone()
        for i, group in enumerate(groups[sample]):
            if not state >> i & 1:
                embedded[0, list(group)] = value.to(embedded.dtype)
        v[sample, state] = odds(run(embedded, sample), int(target[sample]))
    return v
