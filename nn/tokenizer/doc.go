// Package tokenizer turns text into the token ids of a published model. It reads tokenizer.json, the
// format of Hugging Face's tokenizers, or a BERT vocabulary, vocab.txt. The ids equal the ids that
// Hugging Face's tokenizers computes. A setting that the package does not support is an error that
// names the setting by its path in the file.
//
// Files and texts may be untrusted: no file and no text causes a panic. A byte that is no part of
// valid UTF-8 is read as U+FFFD.
package tokenizer
