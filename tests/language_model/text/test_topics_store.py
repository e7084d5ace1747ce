"""Python's help topics make documents of sentences, and no section stands on both sides of the split."""

from language_model.text.topics_store import corpus, documents


def test_sections_are_documents_of_sentences_under_their_topic():
    found = documents()
    name = next(name for name in found if name.startswith("yield: "))
    assert name == 'yield: The "yield" statement'
    assert found[name][0] == 'The "yield" statement'
    assert any(line.startswith("yield_stmt") for line in found[name])
    assert any(line.startswith('A "yield" statement is semantically equivalent') for line in found[name])
    assert not [line for lines in found.values() for line in lines if not line.strip() or "\n" in line]
    assert sum(len(line) for lines in found.values() for line in lines) > 200_000


def test_no_text_of_the_evaluation_sections_is_a_training_section():
    train, evaluation = corpus()
    train_lines = {line for document in train for line in document.sentences()}
    long_lines = [line for document in evaluation for line in document.sentences() if len(line) > 60]
    assert len(long_lines) > 100
    assert sum(line in train_lines for line in long_lines) < 0.01 * len(long_lines)
    assert not {document.fingerprint for document in train} & {document.fingerprint for document in evaluation}


def test_a_tuning_split_divides_the_training_sections_alone():
    whole, _ = corpus()
    train, evaluation = corpus(tuning=True)
    assert sorted(document.name for document in [*train, *evaluation]) == sorted(document.name for document in whole)
    assert 0.1 < len(evaluation) / len(whole) < 0.25
