package report

import (
	_ "embed"
	"encoding/json"
	"fmt"
	"html"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/flashkit-go/flashkit/internal/bench"
)

//go:embed testdata/inspect.html
var inspectPage string

// browser returns the browser of FLASHKIT_BROWSER, or else one on the path. Without either it skips
// the test; a wrong name fails.
func browser(t *testing.T) string {
	if name := os.Getenv("FLASHKIT_BROWSER"); name != "" {
		path, err := exec.LookPath(name)
		require.NoError(t, err, "FLASHKIT_BROWSER")
		return path
	}
	for _, name := range []string{"chromium", "chromium-browser", "google-chrome"} {
		if path, err := exec.LookPath(name); err == nil {
			return path
		}
	}
	t.Skip("no Chromium here: make browser installs one, and FLASHKIT_BROWSER names one")
	return ""
}

// A finding is the output of testdata/inspect.html for a document at a width.
type finding struct {
	Page     string   `json:"page"`
	Width    int      `json:"width"`
	Dark     bool     `json:"dark"`
	Plots    int      `json:"plots"`
	Marks    int      `json:"marks"`
	Problems []string `json:"problems"`
}

// The page begins with a plot and folds the others. Every plot is within its frame, its text is
// legible and overlaps no other text, and colors have contrast. Nothing is cut or wider than a
// phone. Nothing is fetched or logged. All in light and dark, on a phone and a desktop.
func TestReportInABrowser(t *testing.T) {
	if testing.Short() {
		t.Skip("make browser runs it")
	}
	chromium := browser(t)
	pages := map[string][]byte{}
	example, err := bench.ReadFiles([]string{"../../docs/report/grid.json", "../../docs/report/decode.json"})
	require.NoError(t, err)
	reports := map[string]*bench.Results{"example.html": example, "wide.html": wideResults(), "one.html": oneResult(), "many.html": manyKinds(), "naive.html": naiveResults()}
	for name, r := range reports {
		pages[name] = render(t, New(r), "")
	}
	for _, plot := range PlotNames {
		r := wideResults()
		if plot == "peak" {
			r = naiveResults()
		}
		pages[plot+".svg"] = render(t, New(r), plot)
	}
	drawings, err := filepath.Glob("../../docs/figures/*.svg")
	require.NoError(t, err)
	require.NotEmpty(t, drawings)
	for _, path := range drawings {
		pages["figure-"+filepath.Base(path)], err = os.ReadFile(path)
		require.NoError(t, err)
	}
	for scheme, setting := range map[string]string{"light": "1", "dark": "0"} {
		t.Run(scheme, func(t *testing.T) {
			findings := inspect(t, chromium, setting, pages)
			require.Len(t, findings, 4*len(pages))
			for _, f := range findings {
				for _, problem := range f.Problems {
					t.Errorf("%s, %d pixels wide: %s", f.Page, f.Width, problem)
				}
				require.Equal(t, scheme == "dark", f.Dark, "the browser's setting")
				want := 1 // an image, or the large plot
				if r := reports[f.Page]; r != nil {
					for _, fig := range New(r).Figures {
						want += len(fig.panels())
					}
				}
				require.GreaterOrEqual(t, f.Plots, want, f.Page)
				require.Positive(t, f.Marks, f.Page)
			}
		})
	}
}

// inspect opens the pages in a browser and returns the findings.
func inspect(t *testing.T, chromium, scheme string, pages map[string][]byte) (findings []finding) {
	var names []string
	for name := range pages {
		names = append(names, name)
	}
	list, err := json.Marshal(names)
	require.NoError(t, err)
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		name := strings.TrimPrefix(r.URL.Path, "/")
		page, ok := pages[name]
		switch {
		case name == "":
			fmt.Fprint(w, strings.Replace(inspectPage, "PAGES", string(list), 1))
		case ok && strings.HasSuffix(name, ".svg"):
			w.Header().Set("Content-Type", "image/svg+xml")
			w.Write(page)
		case ok:
			w.Write(page)
		default:
			t.Errorf("a page asked for %s", r.URL)
			http.NotFound(w, r)
		}
	}))
	defer server.Close()
	cmd := exec.CommandContext(t.Context(), chromium, "--headless", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run", "--disable-background-networking",
		"--disable-component-update", "--disable-sync", "--user-data-dir="+t.TempDir(), "--enable-logging=stderr", "--blink-settings=preferredColorScheme="+scheme,
		"--window-size=1400,1000", "--dump-dom", server.URL+"/")
	cmd.WaitDelay = 10 * time.Second
	var stderr strings.Builder
	cmd.Stderr = &stderr
	out, err := cmd.Output()
	require.NoError(t, err, stderr.String())
	for line := range strings.Lines(stderr.String()) {
		require.NotContains(t, line, "CONSOLE", "the console stays empty")
	}
	found := regexp.MustCompile(`(?s)<pre id="findings">(.*)</pre>`).FindSubmatch(out)
	require.NotNil(t, found, "%s", out)
	require.NoError(t, json.Unmarshal([]byte(html.UnescapeString(string(found[1]))), &findings), "%s", found[1])
	return findings
}
