package main

import (
	"cmp"
	"encoding/json"
	"net/http"
	"slices"
)

// parseRerank parses a request as Cohere's and Jina's POST /rerank.
func (s *Server) parseRerank(body []byte) (*order, error) {
	m := s.reranker
	o := &order{job: job{model: m}}
	var id string
	var query, documents *string
	var echo bool
	var top *int
	list := texts(&o.texts, "documents", s.limits.Texts, true)
	err := parse(body, fields{
		"model":            value(&id),
		"query":            value(&query),
		"documents":        func(d *json.Decoder) error { documents = new(string); return list(d) },
		"top_n":            value(&top),
		"return_documents": value(&echo),
	})
	switch {
	case err != nil:
		return nil, err
	case id != "" && id != m.id:
		return nil, m.other(id)
	case query == nil:
		return nil, bad("query", "is missing")
	case *query == "":
		return nil, bad("query", "must not be empty")
	case documents == nil:
		return nil, bad("documents", "is missing")
	case len(o.texts) == 0:
		return nil, bad("documents", "must have at least one text")
	case top != nil && *top < 1:
		return nil, bad("top_n", "%d: must be at least 1", *top)
	}
	most := len(o.texts)
	if top != nil {
		most = min(most, *top)
	}
	o.query = *query
	texts := o.texts
	o.write = func(w http.ResponseWriter, r result) error {
		return writeScores(w, m.id, ranked(r.scores)[:most], texts, echo, o.tokens)
	}
	return o, nil
}

// A rank is a text's index and score.
type rank struct {
	Index    int       `json:"index"`
	Score    float32   `json:"relevance_score"`
	Document *document `json:"document,omitempty"`
}

type document struct {
	Text string `json:"text"`
}

// ranked returns the scores, best first. Equal scores keep the order of the texts.
func ranked(scores []float32) []rank {
	ranks := make([]rank, len(scores))
	for i, x := range scores {
		ranks[i] = rank{Index: i, Score: x}
	}
	slices.SortStableFunc(ranks, func(a, b rank) int { return cmp.Compare(b.Score, a.Score) })
	return ranks
}

func writeScores(w http.ResponseWriter, id string, ranks []rank, texts []string, echo bool, tokens int) error {
	if echo {
		for i := range ranks {
			ranks[i].Document = &document{texts[ranks[i].Index]}
		}
	}
	return json.NewEncoder(w).Encode(map[string]any{
		"model": id, "results": ranks, "usage": map[string]int{"total_tokens": tokens},
	})
}
