import pytest

from maxtrain.core.errors import DataError
from maxtrain.core.records import parse_record, record_lines
from maxtrain.corpus.document import Document
from maxtrain.corpus.score import Quality
from maxtrain.corpus.text.linear import LinearModel, train_linear


@pytest.fixture(scope="module")
def texts(root):
    """Prose and mathematics."""
    found = {}
    for name in ("book_en", "math"):
        lines = record_lines(root / "data" / "sample" / f"{name}.jsonl.zst")
        found[name] = [parse_record(line)["text"][:1500] for number, line in lines if number <= 150]
    return found


def test_training_does_not_depend_on_order_and_tells_classes_apart(texts, tmp_path):
    model = train_linear(texts["book_en"][:120], texts["math"][:120])
    again = train_linear(texts["book_en"][:120][::-1], texts["math"][:120][::-1])
    assert model.to_bytes() == again.to_bytes()
    held_out = [model.probability(text) > 0.5 for text in texts["book_en"][120:]]
    assert sum(held_out) / len(held_out) >= 0.9
    assert sum(model.probability(text) < 0.5 for text in texts["math"][120:]) >= 27
    assert model.facts["held_out"]["auc"] > 0.9
    path = tmp_path / "model.bin"
    path.write_bytes(model.to_bytes())
    loaded = LinearModel.load(path)
    assert loaded.facts == model.facts
    assert loaded.probability(texts["math"][0]) == model.probability(texts["math"][0])
    document = Document("0" * 32, texts["math"][0], "s", "en", "web", "", "", 1)
    assert Quality(model=str(path)).apply(document) is None
    assert document.scores["quality_model"] < 0.5


def test_what_is_no_model_is_refused(tmp_path):
    with pytest.raises(DataError, match="no such model"):
        LinearModel.load(tmp_path / "none")
    (tmp_path / "text").write_text("hello")
    with pytest.raises(DataError, match="not a linear model"):
        LinearModel.load(tmp_path / "text")
    with pytest.raises(DataError, match="too few"):
        train_linear(["a"], ["b"])
