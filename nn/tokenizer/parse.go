package tokenizer

import (
	"encoding/json"
	"fmt"
	"slices"
	"strings"

	"github.com/flashkit-go/flashkit/internal/strict"
)

// Parse reads a tokenizer.json. Padding is ignored, and so are the stride and the strategy of
// truncation.
func Parse(file []byte) (*Tokenizer, error) {
	r := &strict.File{Name: "tokenizer.json"}
	t := parseFile(r, file, nil)
	if r.Err != nil {
		return nil, r.Err
	}
	return t, nil
}

// parseFile reads a tokenizer.json, with the settings of other files if c is not nil.
func parseFile(r *strict.File, file []byte, c *config) *Tokenizer {
	loadClasses()
	t := &Tokenizer{added: map[string]int32{}}
	f := objectOf(r, "", file, 0)
	if r.Err != nil {
		return nil
	}
	f.Ignore("version", "padding", "decoder")
	if v, ok := f.take("truncation"); ok {
		t.truncation(f.inner("truncation", v))
	}
	f.optional("normalizer", func(f *fields) { t.normalizers = newNormalizers(f, nil) })
	f.optional("pre_tokenizer", func(f *fields) { t.preTokenizers = newPreTokenizers(f, nil) })
	var post postProcessor
	f.optional("post_processor", post.read)
	t.single, t.pair = post.templates()
	m := f.object("model")
	t.model = newModel(m)
	m.Done()
	var tokens []addedToken
	if f.Has("added_tokens") && r.Err == nil {
		f.objects("added_tokens", func(f *fields) { tokens = append(tokens, newAddedToken(f, true)) })
	}
	f.Done()
	if r.Err != nil {
		return nil
	}
	t.checkFirst(r)
	if c == nil {
		t.add(r, tokens)
		return t
	}
	k := c.rules(r, true)
	if k != nil && r.Err == nil {
		k.apply(r, c, t, tokens)
	}
	if k == nil && r.Err == nil {
		c.checkRebuilt(r, t)
	}
	if r.Err == nil {
		c.finish(r, k, t, tokens)
	}
	return t
}

// optional calls read for an object that may be missing, and checks that it read all keys.
func (f *fields) optional(key string, read func(*fields)) {
	if v, ok := f.take(key); ok && f.Err == nil {
		x := f.inner(key, v)
		read(x)
		x.Done()
	}
}

func (t *Tokenizer) truncation(f *fields) {
	f.Ignore("stride", "strategy")
	t.most = int(f.whole("max_length"))
	if v, ok := f.take("direction"); ok {
		t.left = f.oneOf("direction", v, "Right", "Left") == "Left"
	}
	f.Done()
}

// oneOf returns a string that must be one of a list.
func (f *fields) oneOf(key string, v json.RawMessage, list ...string) (s string) {
	if f.into(key, v, &s, "a string") && !slices.Contains(list, s) {
		f.fail(key, "%.60q is not supported", s)
	}
	return s
}

// newAddedToken returns an added token, with its id if the object has the id.
func newAddedToken(f *fields, hasID bool) addedToken {
	special, id := f.flag("special", false), int32(-1)
	if hasID {
		id = f.whole("id")
	}
	return addedToken{
		id: id, content: f.text("content"), extra: special, single: f.flag("single_word", false),
		left: f.flag("lstrip", false), right: f.flag("rstrip", false), normal: f.flag("normalized", !special),
	}
}

// add sets the added tokens, special tokens first. A token that the vocabulary lacks gets the next
// free id.
func (t *Tokenizer) add(r *strict.File, tokens []addedToken) {
	t.size = t.model.len()
	next := int32(t.model.count())
	list := map[string]int{} // index in kept
	var kept []addedToken
	for i, a := range tokens {
		if a.content == "" {
			continue
		}
		id, ok := t.ID(a.content)
		if !ok {
			id = next
		}
		if a.id >= 0 && id != a.id {
			r.Fail(addedPath(r, i), "%.60q gets the id %d, not %d", a.content, id, a.id)
			return
		}
		a.id, next = id, max(next, id+1)
		t.added[a.content] = id
		t.size = max(t.size, int(id)+1)
		if at, ok := list[a.content]; ok {
			kept[at] = a
			continue
		}
		list[a.content] = len(kept)
		kept = append(kept, a)
	}
	for _, x := range []*template{&t.single, &t.pair} {
		for _, p := range x.pieces {
			for _, id := range p.ids {
				t.size = max(t.size, int(id)+1)
			}
		}
	}
	t.match(r, kept)
}

// match makes the matchers of the added tokens.
func (t *Tokenizer) match(r *strict.File, tokens []addedToken) {
	slices.SortStableFunc(tokens, func(a, b addedToken) int {
		switch {
		case a.extra == b.extra:
			return 0
		case a.extra:
			return -1
		}
		return 1
	})
	var raw, normal []addedToken
	var rawTexts, normalTexts []string
	var s scratch
	seen := map[string]string{}
	for _, a := range tokens {
		if !a.normal {
			raw, rawTexts = append(raw, a), append(rawTexts, a.content)
			continue
		}
		text := string([]byte(t.normalized(&s, a.content)))
		if text == "" {
			r.Fail("added_tokens", "%.60q is empty after normalization, which is not supported", a.content)
		}
		if other, ok := seen[text]; ok { // the reference takes either, at random
			r.Fail("added_tokens", "%.60q and %.60q are equal after normalization, which is not supported", other, a.content)
		}
		seen[text] = a.content
		normal, normalTexts = append(normal, a), append(normalTexts, text)
	}
	if r.Err == nil {
		t.raw, t.normal = newMatcher(raw, rawTexts), newMatcher(normal, normalTexts)
	}
}

// addedPath returns the path of an added token's id. Tokens of other files have no index.
func addedPath(r *strict.File, i int) string {
	if strings.HasSuffix(r.Name, "tokenizer.json") {
		return fmt.Sprintf("added_tokens[%d].id", i)
	}
	return "added tokens"
}
