"""What all figures share: the slider."""

import ipywidgets as widgets
import matplotlib.pyplot as plt
import pytest

from symgen import figures


@pytest.mark.parametrize("captions", [("1", "2"), ("short", "a caption longer than a readout")])
def test_a_slider_shows_one_figure_at_a_time_and_long_captions_whole(captions):
    drawn = {}
    for caption in captions:
        drawn[caption] = plt.subplots()[1]
        drawn[caption].set_title(f"title of {caption}")
    chooser, stack = figures.slider(drawn, "which").children
    assert isinstance(chooser, widgets.SelectionSlider) and chooser.description == "which"
    assert [label for label, _ in chooser.options] == list(captions)
    assert stack.selected_index == chooser.index == 0
    assert not plt.get_fignums()
    long = len(captions[1]) > 16
    for caption, page in zip(captions, stack.children, strict=True):
        *label, picture = page.children if long else [page]
        assert [x.value for x in label] == [caption] * long
        assert picture.value.startswith("<svg") and f"title of {caption}" in picture.value
