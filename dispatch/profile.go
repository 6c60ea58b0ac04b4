package dispatch

import (
	"bytes"
	"cmp"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"math"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/flashkit-go/flashkit"
	"github.com/flashkit-go/flashkit/internal/outfile"
)

// A profile is the measured speed of kernels on a machine. The first line of a profile's file holds
// the format and a checksum of all other lines, which are JSON.
type profile struct {
	Machine machine                 `json:"machine"`
	Kernels map[string]kernelFigure `json:"kernels"`
	Calls   []lastCall              `json:"calls,omitempty"`
}

// A kernelFigure is the measured speed of a kernel.
type kernelFigure struct {
	// Predicts holds the kernel's own prediction for each problem of the list references, in
	// nanoseconds. -1 means that the kernel does not support the problem. LoadProfile ignores the
	// kernel's figures if the kernel's predictions have changed since the profile was saved.
	Predicts []int64 `json:"predicts"`

	// Ratios of measured to predicted time. Rates has a ratio for each regime. Standings has a ratio
	// for each kind, from kernels timed in turn.
	Rates     map[string]float64 `json:"rates,omitempty"`
	Standings map[string]float64 `json:"standings,omitempty"`
}

// A lastCall is the duration of a kernel's latest call on a problem.
type lastCall struct {
	Kernel  string  `json:"kernel"`
	Problem string  `json:"problem"`
	Seconds float64 `json:"seconds"`
}

const (
	profileMagic = outfile.ProfileMagic + "3 "
	profileLimit = 4 << 20 // bytes
)

// ErrProfile is the error of an ignored profile, wrapped with the reason: the file is damaged, or
// it was recorded on a different machine or driver.
var ErrProfile = errors.New("profile ignored")

// references are problems whose predictions identify a kernel's cost model: if the model changes,
// at least one of the predictions should change.
var references = [...]flashkit.Problem{
	{Batch: 1, Heads: 8, KVHeads: 2, QLen: 1, KVLen: 4096, Dim: 128, VDim: 128},
	{Batch: 2, Heads: 4, KVHeads: 4, QLen: 100, KVLen: 100, Dim: 64, VDim: 64, Band: flashkit.Causal()},
	{Batch: 1, Heads: 4, KVHeads: 4, QLen: 2048, KVLen: 2048, Dim: 80, VDim: 80, DType: flashkit.BFloat16},
	{Batch: 1, Heads: 8, KVHeads: 2, QLen: 100, KVLen: 1000, Dim: 64, VDim: 64, Score: flashkit.Score{Softcap: 30, Mask: true}},
	{Batch: 4, Heads: 8, KVHeads: 2, QLen: 1, KVLen: 4096, Dim: 64, VDim: 64, Ragged: true, Page: 16},
}

func (m *memory) predicts(kernel int) (list []int64) {
	for _, p := range references {
		cost := time.Duration(-1)
		if c := p.Ask(m.kernels[kernel].Pass); m.kernels[kernel].Fits(c) == "" {
			cost = m.cost(kernel, c)
		}
		list = append(list, int64(cost))
	}
	return list
}

// profileVariable is the environment variable with the profile's path, or "off" for no profile.
const profileVariable = "FLASHKIT_PROFILE"

// ErrNoProfile is ProfilePath's error if FLASHKIT_PROFILE is off.
var ErrNoProfile = errors.New(profileVariable + " is off")

// ProfilePath returns the path at which All, Open and Default look for this machine's profile. The
// path is the value of FLASHKIT_PROFILE, or else a file in the folder flashkit of the user's cache
// folder. The file's name contains a hash of the machine, as several machines may share that
// folder. The error is ErrNoProfile, or the reason why the user has no cache folder.
func (d *Dispatcher) ProfilePath() (string, error) {
	switch path := os.Getenv(profileVariable); path {
	case "":
	case "off":
		return "", ErrNoProfile
	default:
		return path, nil
	}
	folder, err := os.UserCacheDir()
	if err != nil {
		return "", err
	}
	text, err := json.Marshal(d.machine)
	if err != nil {
		return "", err
	}
	sum := sha256.Sum256(text)
	return filepath.Join(folder, "flashkit", "profile-"+hex.EncodeToString(sum[:8])), nil
}

// LoadProfile copies a profile's figures to the memory that d shares with its copies. It skips
// kernels whose own predictions have changed. The error matches fs.ErrNotExist if there is no file.
// It matches ErrProfile if the file is damaged, or recorded on a different machine or driver. After
// an error, the memory is unchanged.
func (d *Dispatcher) LoadProfile(path string) error {
	p, err := readProfile(path)
	if err != nil {
		return err
	}
	if !d.machine.matches(p.Machine) {
		return fmt.Errorf("%w: %s: recorded on a different machine or driver", ErrProfile, path)
	}
	for i := range d.memory.kernels {
		f, ok := p.Kernels[d.memory.kernels[i].Name]
		if ok && slices.Equal(f.Predicts, d.memory.predicts(i)) {
			d.memory.setFigures(i, f)
		}
	}
	d.memory.version.Add(1)
	for _, c := range p.Calls {
		d.memory.restoreCall(c)
	}
	d.memory.keepUnopened(p, d.unopened)
	return nil
}

// keepUnopened keeps a profile's figures of unopened backends, so that the next SaveProfile does
// not lose them.
func (m *memory) keepUnopened(p *profile, backends []string) {
	of := func(kernel string) bool {
		backend, _, _ := strings.Cut(kernel, "/")
		return slices.Contains(backends, backend)
	}
	m.probing.Lock()
	defer m.probing.Unlock()
	m.kept = profile{Machine: machine{Devices: map[string]device{}}, Kernels: map[string]kernelFigure{}}
	for name, d := range p.Machine.Devices {
		if slices.Contains(backends, name) {
			m.kept.Machine.Devices[name] = d
		}
	}
	for name, f := range p.Kernels {
		if of(name) {
			m.kept.Kernels[name] = f
		}
	}
	for _, c := range p.Calls {
		if of(c.Kernel) {
			m.kept.Calls = append(m.kept.Calls, c)
		}
	}
}

// addUnopened adds to a profile the figures that keepUnopened kept.
func (m *memory) addUnopened(p *profile) {
	m.probing.Lock()
	defer m.probing.Unlock()
	devices := maps.Clone(p.Machine.Devices) // the Dispatcher shares the map
	maps.Copy(devices, m.kept.Machine.Devices)
	p.Machine.Devices = devices
	maps.Copy(p.Kernels, m.kept.Kernels)
	p.Calls = append(p.Calls, m.kept.Calls...)
}

// SaveProfile writes a profile for LoadProfile, and creates its folder if needed. It replaces an
// existing profile atomically, even if several processes write it. It returns an error if path is a
// file that is not a profile. No other function of this package writes to disk.
func (d *Dispatcher) SaveProfile(path string) error {
	body, err := json.Marshal(d.memory.profile(d.machine))
	if err != nil {
		return err
	}
	if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
		return err
	}
	return outfile.Write(path, outfile.Profile, fmt.Appendf(nil, "%s%s\n%s", profileMagic, checksum(body), body))
}

func checksum(body []byte) string {
	sum := sha256.Sum256(body)
	return hex.EncodeToString(sum[:])
}

// readProfile reads and checks a profile. The file is not trusted: it may be huge or damaged, or it
// may not be a profile.
func readProfile(path string) (*profile, error) {
	info, err := os.Stat(path)
	if err != nil {
		return nil, err
	}
	ignored := func(why string) error { return fmt.Errorf("%w: %s: %s", ErrProfile, path, why) }
	if !info.Mode().IsRegular() {
		return nil, ignored("not a regular file")
	}
	f, err := os.Open(path)
	if err != nil {
		return nil, ignored(errors.Unwrap(err).Error())
	}
	defer f.Close()
	text, err := io.ReadAll(io.LimitReader(f, profileLimit+1))
	if err != nil {
		return nil, ignored(err.Error())
	}
	head, body, _ := bytes.Cut(text, []byte("\n"))
	sum, ok := strings.CutPrefix(string(head), profileMagic)
	switch {
	case len(text) > profileLimit:
		return nil, ignored("too large")
	case !ok:
		return nil, ignored("not a profile of this version")
	case sum != checksum(body):
		return nil, ignored("checksum mismatch")
	}
	var p profile
	if err := json.Unmarshal(body, &p); err != nil {
		return nil, ignored(err.Error())
	}
	return &p, nil
}

func (m *memory) profile(of machine) *profile {
	p := &profile{Machine: of, Kernels: map[string]kernelFigure{}}
	for i := range m.kernels {
		f := kernelFigure{m.predicts(i), map[string]float64{}, map[string]float64{}}
		for r := range m.rates[i] {
			if log, n := m.rates[i][r].log(); n > 0 {
				f.Rates[regime(r).String()] = rounded(math.Exp(log))
			}
		}
		for k := range m.standings[i] {
			if log, n := m.standings[i][k].log(); n > 0 {
				f.Standings[kind(k).String()] = rounded(math.Exp(log))
			}
		}
		if len(f.Rates)+len(f.Standings) > 0 {
			p.Kernels[m.kernels[i].Name] = f
		}
	}
	for _, x := range m.recent.Kept() {
		if x.Traits != (flashkit.Traits{}) { // lastCall.Problem cannot hold traits
			continue
		}
		for k := range x.candidates {
			if c := &x.candidates[k]; c.last.Load() > 0 {
				p.Calls = append(p.Calls, lastCall{m.kernels[c.kernel].Name, x.Problem.String(), time.Duration(c.last.Load()).Seconds()})
			}
		}
	}
	m.addUnopened(p)
	slices.SortFunc(p.Calls, func(a, b lastCall) int {
		return cmp.Or(cmp.Compare(a.Problem, b.Problem), cmp.Compare(a.Kernel, b.Kernel))
	})
	return p
}

var regimeNames = sync.OnceValue(func() map[string]regime {
	names := make(map[string]regime, regimes)
	for r := range regime(regimes) {
		names[r.String()] = r
	}
	return names
})

// maxError bounds credible ratios of measured to predicted time, and of predicted to measured time.
const maxError = 1 << 20

// setFigures sets a kernel's factors from a profile. It skips unknown names, and ratios that are
// not between 1/maxError and maxError.
func (m *memory) setFigures(kernel int, f kernelFigure) {
	for name, x := range f.Rates {
		if at, ok := regimeNames()[name]; ok && x > 1.0/maxError && x < maxError {
			m.rates[kernel][at].set(math.Log(x), 1)
		}
	}
	for k := range m.standings[kernel] {
		if x := f.Standings[kind(k).String()]; x > 1.0/maxError && x < maxError {
			m.standings[kernel][k].set(math.Log(x), 1)
		}
	}
}

// rounded returns x with four significant digits, more than any measurement has.
func rounded(x float64) float64 {
	unit := math.Pow(10, math.Floor(math.Log10(x))-3)
	return math.Round(x/unit) * unit
}

// restoreCall sets the duration of a kernel's latest call on a problem, if the kernel still exists
// and supports the problem.
func (m *memory) restoreCall(c lastCall) {
	p, err := flashkit.ParseProblem(c.Problem)
	if err != nil || !(c.Seconds > 0 && c.Seconds < 1e9) {
		return
	}
	if x := m.candidate(c.Kernel, p); x != nil {
		x.last.Store(max(1, int64(c.Seconds*1e9)))
	}
}

// candidate returns the named kernel in a problem's plan, or nil if no such kernel exists or the
// kernel does not fit.
func (m *memory) candidate(kernel string, p flashkit.Problem) *candidate {
	for i := range m.kernels {
		if m.kernels[i].Name != kernel {
			continue
		}
		x := m.plan(denseKey(p, m.kernels[i].Pass))
		for j := range x.candidates {
			if c := &x.candidates[j]; c.kernel == i {
				return c
			}
		}
	}
	return nil
}
