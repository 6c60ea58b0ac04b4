package main

import (
	"errors"
	"maps"
	"regexp"
	"slices"
	"strings"

	"github.com/flashkit-go/flashkit"
)

var fields = func() map[string]string {
	all := map[string]string{
		"Batch": "batch", "Heads": "heads", "KVHeads": "kv_heads", "QLen": "q_len", "KVLen": "kv_len", "Dim": "dim", "VDim": "v_dim",
		"DType": "dtype", "KVDType": "kv_dtype", "Band.left": "left", "Band.right": "right", "Band.shift": "shift", "the scores": "q_len",
		"Args": "args", "Args.Seqs": "seqs", "Seqs.QLens": "q_lens", "Seqs.KVLens": "kv_lens", "Seqs.QStarts": "q_starts", "Seqs.KVStarts": "kv_starts",
		"Origin.Batch": "origin_batch", "Origin.Head": "origin_head", "Origin.Row": "origin_row", "Origin.Key": "origin_key",
		"Seqs.Pages": "pages", "Seqs.PagesPerSeq": "pages_per_seq", "Workers": "workers", "Pass": "pass",
		"KVCacheConfig.Batch": "config.batch", "KVCacheConfig.Heads": "config.kv_heads", "KVCacheConfig.Capacity": "config.capacity",
		"KVCacheConfig.Dim": "config.dim", "KVCacheConfig.DType": "config.dtype", "KVCacheConfig.Page": "config.page", "KVCacheConfig.Pages": "config.pages",
		"KVCacheConfig.Int8Group": "config.int8group", "KVCacheConfig.Scales": "config.scale_dtype", "KVCache: pages": "config.pages",
		"KVCache: b": "seq", "KVCache: n": "len", "KVCache: from": "from", "KVCache: to": "to",
		"Prefix": "prefix", "Prefix.K": "prefix.k", "Prefix.V": "prefix.v", "Prefix.Pages": "prefix.pages", "Prefix.Len": "prefix.len",
	}
	maps.Copy(all, listedFields)
	return all
}()

// words maps words in the Reason of a flashkit.ProblemError to names in flashkit.h. The words are
// names of features and of fields. Some are the last part of a field's name, such as Pages of
// Seqs.Pages.
var words = func() map[string]string {
	w := map[string]string{"Ragged": "FK_RAGGED", "Carry": "FK_CARRY", "Dropout": "dropout", "Pages": "pages", "PagesPerSeq": "pages_per_seq", "Capacity": "capacity"}
	for name, field := range fields {
		if _, ok := w[name]; !ok {
			w[name] = field
		}
	}
	return w
}()

var named = func() *regexp.Regexp {
	names := make([]string, 0, len(words))
	for name := range words {
		names = append(names, regexp.QuoteMeta(name))
	}
	slices.Sort(names)
	slices.Reverse(names) // longer names before their prefixes
	return regexp.MustCompile(`\b(` + strings.Join(names, "|") + `)\b`)
}()

// message returns the text of an error, in which names of package flashkit are replaced by names of
// flashkit.h.
func message(err error) string {
	var p *flashkit.ProblemError
	if !errors.As(err, &p) {
		return err.Error()
	}
	renamed := &flashkit.ProblemError{Field: fieldName(p.Field), Value: p.Value, Reason: inWords(p.Reason)}
	return strings.Replace(err.Error(), p.Error(), renamed.Error(), 1)
}

// inWords returns a reason in which names of package flashkit are replaced by names of flashkit.h.
func inWords(reason string) string {
	return named.ReplaceAllStringFunc(reason, func(s string) string { return words[s] })
}

// fieldName returns the name in flashkit.h of a field: kv_heads for "KVHeads", q.shape for
// "Q.shape", q_lens[3] for "Seqs.QLens[3]".
func fieldName(field string) string {
	if name, ok := fields[field]; ok {
		return name
	}
	if seq, ok := strings.CutPrefix(field, "KVCache: rows of sequence "); ok {
		return "lens[" + seq + "]"
	}
	for i := len(field) - 1; i > 0; i-- {
		if field[i] == '.' || field[i] == '[' {
			if name, ok := fields[field[:i]]; ok {
				return name + strings.TrimSuffix(field[i:], ".len")
			}
		}
	}
	return field
}
