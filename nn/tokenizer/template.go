package tokenizer

import (
	"math"
)

// A template is the order of texts and special tokens in an Encoding.
type template struct {
	pieces  []templatePiece
	special int // number of special tokens
}

// A templatePiece is a text, 0 or 1, or special tokens if sequence is -1.
type templatePiece struct {
	sequence int
	ids      []int32
	kind     int32 // type id
}

func newTemplate(pieces ...templatePiece) template {
	t := template{pieces: pieces}
	for _, p := range pieces {
		t.special += len(p.ids)
	}
	return t
}

// sequence returns the piece of a text.
func sequence(i int, kind int32) templatePiece { return templatePiece{sequence: i, kind: kind} }

// tokens returns the piece of special tokens.
func tokens(kind int32, ids ...int32) templatePiece {
	return templatePiece{sequence: -1, ids: ids, kind: kind}
}

func bertTemplates(cls, sep int32) (single, pair template) {
	return newTemplate(tokens(0, cls), sequence(0, 0), tokens(0, sep)),
		newTemplate(tokens(0, cls), sequence(0, 0), tokens(0, sep), sequence(1, 1), tokens(1, sep))
}

func robertaTemplates(cls, sep int32) (single, pair template) {
	return newTemplate(tokens(0, cls), sequence(0, 0), tokens(0, sep)),
		newTemplate(tokens(0, cls), sequence(0, 0), tokens(0, sep, sep), sequence(1, 0), tokens(0, sep))
}

// A postProcessor has the templates of a text and of a pair. The zero value has no special tokens.
type postProcessor struct {
	set          bool
	single, pair template
}

func (p *postProcessor) read(f *fields) {
	switch kind := f.text("type"); kind {
	case "Sequence":
		f.objects("processors", p.read)
	case "ByteLevel": // changes offsets alone
		f.Ignore("add_prefix_space", "trim_offsets", "use_regex")
	case "BertProcessing":
		cls, sep := f.token("cls"), f.token("sep")
		single, pair := bertTemplates(cls, sep)
		p.add(f, single, pair)
	case "RobertaProcessing":
		f.Ignore("add_prefix_space", "trim_offsets")
		cls, sep := f.token("cls"), f.token("sep")
		single, pair := robertaTemplates(cls, sep)
		p.add(f, single, pair)
	case "TemplateProcessing":
		special := f.specialTokens()
		p.add(f, f.template("single", 1, special), f.template("pair", 2, special))
	default:
		f.unsupported(kind)
	}
}

func (p *postProcessor) add(f *fields, single, pair template) {
	if p.set {
		f.fail("", "two post-processors that add tokens are not supported")
	}
	*p = postProcessor{true, single, pair}
}

// templates returns the templates of a text and of a pair.
func (p *postProcessor) templates() (single, pair template) {
	if !p.set {
		return newTemplate(sequence(0, 0)), newTemplate(sequence(0, 0), sequence(1, 1))
	}
	return p.single, p.pair
}

// token returns the id of a list of a token and its id.
func (f *fields) token(key string) (id int32) {
	list, text := f.list(key), ""
	if len(list) != 2 {
		f.fail(key, "must be a token and its id")
		return 0
	}
	f.Into(f.At(key)+"[0]", list[0], &text, "a string")
	if f.Into(f.At(key)+"[1]", list[1], &id, "an id") && !validID(id) {
		f.fail(key+"[1]", "is out of range: %d", id)
	}
	return id
}

// specialTokens returns the ids of a template's special tokens.
func (f *fields) specialTokens() map[string][]int32 {
	all := map[string][]int32{}
	x := f.object("special_tokens")
	for _, name := range x.Unread() {
		t := x.object(name)
		t.Ignore("id", "tokens")
		var ids []int32
		if v, ok := t.need("ids"); ok {
			t.into("ids", v, &ids, "a list of ids")
		}
		for _, id := range ids {
			if !validID(id) {
				t.fail("ids", "is out of range: %d", id)
			}
		}
		t.Done()
		all[name] = ids
	}
	return all
}

// template returns a template of at most most texts.
func (f *fields) template(key string, most int, special map[string][]int32) template {
	var pieces []templatePiece
	f.objects(key, func(f *fields) {
		if f.given("Sequence") {
			x := f.object("Sequence")
			v, _ := x.need("id")
			p := sequence(0, x.typeID())
			if x.oneOf("id", v, []string{"A", "B"}[:most]...) == "B" {
				p.sequence = 1
			}
			x.Done()
			pieces = append(pieces, p)
			return
		}
		x := f.object("SpecialToken")
		name, kind := x.text("id"), x.typeID()
		x.Done()
		ids, ok := special[name]
		if !ok {
			x.fail("id", "%.60q is not in special_tokens", name)
		}
		pieces = append(pieces, tokens(kind, ids...))
	})
	return newTemplate(pieces...)
}

// typeID returns the key type_id.
func (f *fields) typeID() (n int32) {
	var x uint32
	if v, ok := f.need("type_id"); ok && f.into("type_id", v, &x, "a type id") && x > math.MaxInt32 {
		f.fail("type_id", "is out of range: %d", x)
	}
	return int32(x)
}
