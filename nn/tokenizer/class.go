package tokenizer

import (
	"reflect"
	"slices"
	"strings"

	"github.com/flashkit-go/flashkit/internal/strict"
)

// A pretrained is a tokenizer class of transformers that takes the vocabulary of a file, and its rules from
// tokenizer_config.json: WordPiece with BERT's rules.
type pretrained struct {
	special   map[string]addedToken // tokens that tokenizer_config.json need not have, by key
	templates func(cls, sep int32) (single, pair template)
}

var bertClass = &pretrained{special: map[string]addedToken{
	"unk_token": bracketed("UNK"), "sep_token": bracketed("SEP"), "pad_token": bracketed("PAD"), "cls_token": bracketed("CLS"), "mask_token": bracketed("MASK"),
}, templates: bertTemplates}

var mpnetClass = &pretrained{special: map[string]addedToken{
	"bos_token": angled("s"), "eos_token": angled("/s"), "sep_token": angled("/s"), "cls_token": angled("s"),
	"unk_token": bracketed("UNK"), "pad_token": angled("pad"), "mask_token": {content: "<mask>", extra: true, left: true},
}, templates: robertaTemplates}

func bracketed(s string) addedToken { return addedToken{content: "[" + s + "]", extra: true} }

func angled(s string) addedToken { return addedToken{content: "<" + s + ">", extra: true} }

// bertClasses are the names of classes with BERT's rules. Fast may follow.
var bertClasses = []string{"BertTokenizer", "DistilBertTokenizer", "ElectraTokenizer"}

// bertTypes are the values of model_type in config.json whose class is BERT's by default.
var bertTypes = []string{"bert", "distilbert", "electra", "nomic_bert", "convbert", "megatron-bert", "retribert"}

// fileClasses are the names of classes that tokenizer.json describes. Fast may follow.
var fileClasses = []string{"PreTrainedTokenizer", "TokenizersBackend", "RobertaTokenizer", "XLMRobertaTokenizer",
	"Qwen2Tokenizer", "GemmaTokenizer", "LlamaTokenizer", "GPT2Tokenizer"}

// supported reports whether the class is one of the names above.
func (c *config) supported() bool {
	name := strings.TrimSuffix(c.class, "Fast")
	return name == "" || name == "MPNetTokenizer" || slices.Contains(bertClasses, name) || slices.Contains(fileClasses, name)
}

// rules returns the class of the settings, or nil if tokenizer.json has all rules. fast is true if there
// is a tokenizer.json.
func (c *config) rules(r *strict.File, fast bool) *pretrained {
	name := strings.TrimSuffix(c.class, "Fast")
	switch {
	case slices.Contains(bertClasses, name) || name == "" && slices.Contains(bertTypes, c.modelType):
		return bertClass
	case name == "MPNetTokenizer" || name == "" && c.modelType == "mpnet":
		return mpnetClass
	case fast && (name == "" || slices.Contains(fileClasses, name)):
		return nil
	case name == "":
		return bertClass
	}
	if r.Name = c.file; slices.Contains(fileClasses, name) {
		r.Fail("tokenizer_class", "%.60q needs tokenizer.json, which is missing", c.class)
	} else {
		r.Fail("tokenizer_class", "%.60q is not supported", c.class)
	}
	return nil
}

// token returns the special token of a key.
func (c *config) token(k *pretrained, key string) (addedToken, bool) {
	if a, ok := c.special[key]; ok {
		return a, true
	}
	if k == nil {
		return addedToken{}, false
	}
	a, ok := k.special[key]
	return a, ok
}

// normalizer returns BERT's normalizer with the settings.
func (c *config) normalizer() bertNormalizer {
	n := bertNormalizer{clean: true, ideographs: c.ideographs, lower: c.lower, strip: c.lower}
	if c.strip != nil {
		n.strip = *c.strip
	}
	return n
}

// apply replaces the rules of tokenizer.json by the rules of a class. It fails where versions of
// transformers differ, because the file has other rules than the class.
func (k *pretrained) apply(r *strict.File, c *config, t *Tokenizer, tokens []addedToken) {
	m, ok := t.model.(*wordPiece)
	unk, _ := c.token(k, "unk_token")
	id, known := t.model.id(unk.content)
	switch {
	case !ok || m.prefix != "##" || m.most != 100 || !known || m.unk != id:
		r.Fail("model", "must be WordPiece with the prefix ##, 100 characters a word and the unknown token %.60q", unk.content)
		return
	case len(t.preTokenizers) != 1 || t.preTokenizers[0] != preTokenizer(bertPreTokenizer{}):
		r.Fail("pre_tokenizer", "must be BertPreTokenizer")
	case len(t.normalizers) != 1:
		r.Fail("normalizer", "must be BertNormalizer")
	}
	if n, ok := t.normalizers[0].(bertNormalizer); !ok || !n.clean {
		r.Fail("normalizer", "must be BertNormalizer with clean_text")
	}
	t.normalizers = []normalizer{c.normalizer()}
	single, pair := t.single, t.pair
	if k.setTemplates(r, c, t); !reflect.DeepEqual(single, t.single) || len(pair.pieces) > 0 && !reflect.DeepEqual(pair, t.pair) {
		r.Fail("post_processor", "has another template than the class of tokenizer_config.json")
	}
	if !c.given["added_tokens_decoder"] {
		return
	}
	named := slices.Clone(c.extra)
	for _, key := range specialKeys {
		if a, ok := c.token(k, key); ok {
			named = append(named, a)
		}
	}
	for _, a := range tokens {
		inNamed := slices.ContainsFunc(named, func(b addedToken) bool { b.id = a.id; return a == b })
		if !inNamed && !slices.ContainsFunc(c.added, func(b addedToken) bool { return a.content == b.content }) {
			r.Fail("added_tokens", "%.60q is not in added_tokens_decoder of tokenizer_config.json", a.content)
		}
	}
}

// setTemplates sets the templates of a class.
func (k *pretrained) setTemplates(r *strict.File, c *config, t *Tokenizer) {
	var ids [2]int32
	for i, key := range []string{"cls_token", "sep_token"} {
		a, _ := c.token(k, key)
		id, ok := t.model.id(a.content)
		if !ok {
			r.Fail("", "the vocabulary of %d tokens has no token %.60q", t.model.count(), a.content)
		}
		ids[i] = id
	}
	t.single, t.pair = k.templates(ids[0], ids[1])
}
