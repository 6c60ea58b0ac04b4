package encoder

import (
	"errors"
	"fmt"
	"io/fs"
	"math"
	"os"
	"path/filepath"
	"strings"

	"github.com/flashkit-go/flashkit/nn"
	"github.com/flashkit-go/flashkit/safetensors"
)

// An adapter is a LoRA adapter, which Open merges into the weights of its base model: W becomes
// W + scale * B A.
//
// Source: Hu et al., LoRA, 2021; the scale alpha / sqrt(r): Kalajdzievski, rsLoRA, 2023.
type adapter struct {
	dir   string
	base  string // folder of the base model
	alpha float64
	root  bool // the scale is alpha / sqrt(r), else alpha / r
}

// openAdapter reads adapter_config.json. It returns nil if the file does not exist.
func openAdapter(dir string) (*adapter, error) {
	c, found, err := openConfig(dir, "adapter_config.json")
	if err != nil || !found {
		return nil, err
	}
	c.Only("peft_type", `"LORA"`)
	a := &adapter{dir: dir, base: c.text("base_model_name_or_path", ""), alpha: c.number("lora_alpha", 8), root: c.flag("use_rslora", false)}
	if !filepath.IsAbs(a.base) {
		a.base = filepath.Join(dir, a.base)
	}
	if info, err := os.Stat(a.base); err != nil || !info.IsDir() {
		c.Refuse("base_model_name_or_path", "must be the folder of the base model, absolute or within the adapter's")
	}
	c.Only("bias", `"none"`)
	c.Only("init_lora_weights", "true", "false", `"gaussian"`, "null") // others change the base model
	for _, key := range []string{"fan_in_fan_out", "use_dora", "lora_bias", "use_qalora"} {
		c.Only(key, "false", "null")
	}
	for _, key := range []string{"rank_pattern", "alpha_pattern", "loftq_config", "eva_config", "corda_config", "lora_ga_config", "velora_config",
		"monteclora_config", "arrow_config", "kasa_config", "use_bdlora", "megatron_config", "layer_replication", "alora_invocation_tokens",
		"trainable_token_indices", "target_parameters", "modules_to_save"} {
		c.Only(key, "null", "{}", "[]")
	}
	return a, c.Done("auto_mapping", "task_type", "inference_mode", "revision", "peft_version", "r", "lora_dropout", "target_modules", "exclude_modules",
		"layers_to_transform", "layers_pattern", "megatron_core", "qalora_group_size", "ensure_weight_tying")
}

// merge adds the adapter to the base model's tensors, whose names lack the prefix.
func (a *adapter) merge(f *weights, prefix string) error {
	name := filepath.Join(a.dir, "adapter_model.safetensors")
	w := &weights{sources: map[string]source{}}
	err := w.open(name, nil)
	f.files = append(f.files, w.files...)
	if errors.Is(err, fs.ErrNotExist) && exists(filepath.Join(a.dir, "adapter_model.bin")) {
		return fmt.Errorf("%w, and adapter_model.bin is not read: convert it to safetensors", err)
	}
	if err != nil {
		return err
	}
	f.changes = map[string]func(safetensors.Tensor) (safetensors.Tensor, error){}
	for _, t := range w.Tensors {
		path, isA := strings.CutSuffix(t.Name, ".lora_A.weight")
		_, isB := strings.CutSuffix(t.Name, ".lora_B.weight")
		if isB {
			continue
		}
		target := strings.TrimPrefix(strings.TrimPrefix(path, "base_model.model."), prefix) + ".weight"
		if _, ok := f.Tensor(target); !isA || !ok {
			return fmt.Errorf("%s: tensor %.120q is not lora_A or lora_B of a tensor of the base model", name, t.Name)
		}
		f.changes[target] = func(t safetensors.Tensor) (safetensors.Tensor, error) {
			t, err := a.add(t, w, path)
			return t, within(name, err)
		}
	}
	return nil
}

// add returns a tensor [out, in] plus the product of lora_B [out, r] and lora_A [r, in].
func (a *adapter) add(t safetensors.Tensor, w *weights, path string) (safetensors.Tensor, error) {
	x, err := w.Require(path + ".lora_A.weight") // its shape
	if err != nil {
		return t, err
	}
	if len(t.Shape) != 2 || len(x.Shape) != 2 || x.Shape[1] != t.Shape[1] {
		return t, problem("tensor "+x.Name, x.Shape, "must be [r, in] for a base tensor [out, in], which is %v", t.Shape)
	}
	out, in, r := t.Shape[0], t.Shape[1], x.Shape[0]
	base := nn.FromFile(&safetensors.File{Tensors: []safetensors.Tensor{t}})
	weight := append([]float32(nil), base.Constant(t.Name, 0, out, in).Data...)
	i := nn.FromTensors(w.require).In(path)
	down, up := i.Constant("lora_A.weight", 0, r, in).Data, i.Constant("lora_B.weight", 0, out, r).Data
	if err := errors.Join(base.Err(), i.Err()); err != nil {
		return t, err
	}
	scale := a.alpha / float64(r)
	if a.root {
		scale = a.alpha / math.Sqrt(float64(r))
	}
	for o := range out {
		row := weight[o*in:][:in]
		for k, b := range up[o*r:][:r] {
			b *= float32(scale)
			for j, v := range down[k*in:][:in] {
				row[j] += b * v
			}
		}
	}
	return safetensors.FromFloat32s(t.Name, t.Shape, weight), nil
}
