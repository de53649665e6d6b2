package check

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"math"
	"net/url"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/gpu-fault/kubectl-gpu-fault/debugpod"
	"github.com/gpu-fault/kubectl-gpu-fault/pkg/scenario"
)

// Load is a stream of HTTP requests from a pod.
type Load struct {
	Name      string `json:"name"`
	Namespace string `json:"namespace,omitempty"` // namespace of the pod that sends the requests
	URL       string `json:"url"`
	// Completions makes each request an OpenAI-style completion: a POST with this body. Otherwise, each request is a
	// GET.
	Completions *Completions `json:"completions,omitempty"`
	// Rate is the number of requests per second. Requests are sent even if earlier ones have not received a response
	// yet. The default is 2.
	Rate float64 `json:"rate,omitempty"`
	// Timeout is the time after which a request is considered failed. The default is 5s.
	Timeout scenario.Duration `json:"timeout,omitempty"`
}

// Completions is the body of a request to /v1/completions.
type Completions struct {
	Model     string `json:"model"`
	Prompt    string `json:"prompt"`
	MaxTokens int    `json:"max_tokens"`
}

// Request is a request that a load has sent and that either got a response or failed.
type Request struct {
	At   time.Time // when the result arrived, according to this client's clock
	Took time.Duration
	OK   bool // the response had a status below 400
}

// Limits for a load. The product of rate and timeout is the maximum number of open requests.
const (
	defaultRate = 2.0
	mostRate    = 20.0
	mostOpen    = 200.0
)

// Defaults returns the load with its defaults set.
func (l Load) Defaults() Load {
	if l.Rate == 0 {
		l.Rate = defaultRate
	}
	if l.Timeout == 0 {
		l.Timeout = scenario.Duration(defaultLoadTimeout)
	}
	if c := l.Completions; c != nil && c.MaxTokens == 0 {
		l.Completions = &Completions{c.Model, c.Prompt, defaultTokens}
	}
	return l
}

const (
	defaultLoadTimeout = 5 * time.Second
	defaultTokens      = 16
)

// Validate returns an error if the load cannot be sent.
func (l Load) Validate() error {
	l = l.Defaults()
	u, err := url.Parse(l.URL)
	seconds := l.Timeout.Std().Seconds()
	switch {
	case l.Name == "":
		return errors.New("a load must have a name")
	case err != nil, u.Scheme != "http" && u.Scheme != "https", u.Host == "":
		return fmt.Errorf("%s: url must be an address such as http://vllm.infer:8000/v1/models, not %q", l.Name, l.URL)
	case l.Rate < 0.1 || l.Rate > mostRate || math.IsNaN(l.Rate):
		return fmt.Errorf("%s: rate must be 0.1 to %g requests per second", l.Name, mostRate)
	case seconds < 1 || l.Rate*seconds > mostOpen:
		return fmt.Errorf("%s: timeout must be at least 1s, and rate x timeout, the number of open requests, at most %g", l.Name, mostOpen)
	case l.Completions != nil && (l.Completions.Model == "" || l.Completions.Prompt == ""):
		return fmt.Errorf("%s: completions must have a model and a prompt", l.Name)
	}
	return nil
}

// loadScript sends requests to $3 in the background, one every $1 seconds, with timeout $2, and with body $4 if it is
// not empty. It prints a line for each request: the request's start and end in seconds since the node's boot, and the
// exit code. The clock has a resolution of a hundredth of a second; the shell reads it without running a program. The
// first request, for which no line is printed, determines which programs the image contains. A program that timeout
// terminates exits with 124, 137 or 143; other codes from 126 on mean that the program does not work.
const loadScript = `say() { read -r e x </proc/uptime; echo "$1 $e $2"; }
limit=; command -v timeout >/dev/null && limit="timeout $2"
if [ -n "$4" ]; then
  req() { $limit wget -q -T "$2" -O /dev/null --header 'Content-Type: application/json' --post-data "$4" "$3"; }
else
  req() { $limit wget -q -T "$2" -O /dev/null "$3"; }
fi
( req "$@" ) >/dev/null 2>&1; c=$?
if [ $c -ge 126 ] && [ $c != 137 ] && [ $c != 143 ]; then
  [ -z "$4" ] && command -v get >/dev/null || { echo "no wget: exit code $c"; exit 1; }
  req() { get -S -T "$2" "$3"; }
fi
while :; do
  ( read -r s x </proc/uptime; req "$@" >/dev/null 2>&1; say "$s" $? ) &
  sleep "$1"
done
`

func (l Load) command() ([]string, error) {
	body := ""
	if l.Completions != nil {
		text, err := json.Marshal(l.Completions)
		if err != nil {
			return nil, fmt.Errorf("encode the completion: %w", err)
		}
		body = string(text)
	}
	return []string{
		"sh", "-c", loadScript, "load", strconv.FormatFloat(1/l.Rate, 'f', 3, 64),
		strconv.Itoa(int(math.Ceil(l.Timeout.Std().Seconds()))), l.URL, body,
	}, nil
}

// Load sends requests until ctx is done. It calls the function each for every request; these calls do not overlap. It
// prefers nodes that are not in avoid. It starts a new pod if its pod is lost. It returns an error only if it cannot
// send requests at all.
func (c *Checker) Load(ctx context.Context, l Load, avoid []string, each func(Request)) error {
	l = l.Defaults()
	command, err := l.command()
	if err != nil {
		return err
	}
	execer, err := c.exec()
	if err != nil {
		return err
	}
	a := newAsker(c, scenario.HTTP{Namespace: l.Namespace, URL: l.URL})
	a.avoid, a.busy = avoid, true
	defer func() { _ = a.close(ctx) }()
	for sent := false; ctx.Err() == nil; {
		if _, err := a.start(ctx); err != nil && !sent {
			return err
		}
		if a.running == nil {
			if err := sleep(ctx, runEvery); err != nil {
				return nil
			}
			continue
		}
		lines := &requestLines{each: func(r Request) { sent = true; each(r) }, timeout: l.Timeout.Std()}
		err := execer.Exec(ctx, a.running, "main", command, debugpod.Streams{
			In: strings.NewReader(""), Out: lines, Err: &headBuffer{most: maxText},
		})
		if ctx.Err() != nil {
			return nil
		}
		if said := lines.other(); said != "" {
			return fmt.Errorf("load %s: image %s: %s", l.Name, a.running.Spec.Containers[0].Image, said)
		}
		if err != nil && !sent {
			return fmt.Errorf("load %s: %w", l.Name, err)
		}
		// Create another pod, even if this one is still running: its script may continue although nobody reads the
		// output.
		a.running, a.began = nil, time.Time{}
		_ = a.close(ctx)
		_ = sleep(ctx, time.Second)
	}
	return nil
}

// requestLines reads the output of loadScript.
type requestLines struct {
	each    func(Request)
	timeout time.Duration

	mu   sync.Mutex
	rest []byte
	said string
}

// maxLine exceeds the length of any line from loadScript.
const maxLine = 256

func (r *requestLines) Write(p []byte) (int, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	now := time.Now()
	r.rest = append(r.rest, p...)
	for {
		line, rest, found := bytes.Cut(r.rest, []byte("\n"))
		if !found {
			break
		}
		r.rest = rest
		if one, is := readRequest(string(line), r.timeout); is {
			one.At = now
			r.each(one)
		} else if r.said == "" && strings.HasPrefix(string(line), "no wget") {
			r.said = string(line[:min(len(line), maxLine)])
		}
	}
	r.rest = r.rest[max(0, len(r.rest)-maxLine):]
	return len(p), nil
}

func (r *requestLines) other() string {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.said
}

// readRequest parses a line from loadScript. The container may print anything.
func readRequest(line string, timeout time.Duration) (Request, bool) {
	words := strings.Fields(line)
	if len(words) != 3 {
		return Request{}, false
	}
	began, err1 := strconv.ParseFloat(words[0], 64)
	ended, err2 := strconv.ParseFloat(words[1], 64)
	code, err3 := strconv.Atoi(words[2])
	took := ended - began
	if err := errors.Join(err1, err2, err3); err != nil || !(took >= 0 && took < math.MaxInt32) {
		return Request{}, false
	}
	r := Request{Took: time.Duration(took * float64(time.Second)), OK: code == 0}
	r.OK = r.OK && r.Took <= timeout+time.Second // without timeout, wget's limit applies only to inactivity
	return r, true
}
