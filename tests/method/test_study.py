"""Studies: networks and interactions found again, parts named, unknown settings refused."""

import pytest
import torch

from symgen import Study


def test_a_study_finds_the_same_networks_and_interactions_again():
    study = Study.of({"train_size": 60, "epochs": 1, "other": 3}, samples=3, n=4, checkpoints=2)
    assert study.title == "cnn on digits"
    target, others = study.interactions()
    assert target.and_.shape == (3, 16)
    assert len(others) == 1
    again, _ = Study.of(
        {"train_size": 60, "epochs": 1}, samples=3, n=4, checkpoints=2
    ).interactions()
    assert torch.equal(target.and_, again.and_)
    table = study.accuracies
    assert table["part"].tolist() == ["target", "baseline"]
    assert table["training samples"].tolist() == [60, 60]
    assert table["test accuracy"].between(0, 1).all()


@pytest.mark.parametrize(
    ("options", "names"),
    [
        ({}, ["target", "baseline"]),
        ({"baselines": 3}, ["target", "baseline1", "baseline2", "baseline3"]),
        ({"split": "thirds"}, ["A", "B", "C"]),
        ({"split": "test"}, ["target", "baseline"]),
        ({"baselines": 0}, ["target"]),
        ({"baselines": 0, "split": "test"}, ["target"]),
    ],
)
def test_a_study_names_the_parts_of_its_networks(options, names):
    study = Study(train_size=20, **options)
    assert study.names == names
    assert set(names) <= set(study.data.parts)


def test_a_study_refuses_what_it_does_not_have():
    with pytest.raises(ValueError, match='a study has no "netwrk".*network'):
        Study.of({}, netwrk="cnn")
