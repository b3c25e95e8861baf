"""A small knowledge graph: relations between people in groups."""

from helpers.matrices import ones_of
from slide.data import Split
from slide.sparse import Pattern

PEOPLE, RELATIONS = 60, 6


def make_graph(rng, share=0.6):
    """Questions of a person and a relation, which have all people of the person's group as answers.

    Only a share of the answers is known. The last relation has answers at random.
    """
    triples = [
        (head, relation, tail)
        for head in range(PEOPLE)
        for relation in range(RELATIONS)
        for tail in range(PEOPLE)
        if tail != head and (tail // 4 == head // 4 or relation == RELATIONS - 1)
        if rng.random() < (0.05 if relation == RELATIONS - 1 else share)
    ]
    asked = sorted({triple[:2] for triple in triples})
    answers = [[t for h, r, t in triples if (h, r) == question] for question in asked]
    rows = ones_of([[head, PEOPLE + relation] for head, relation in asked])
    return Split(rows, Pattern.from_lists(answers), PEOPLE + RELATIONS, PEOPLE)
