package debugpod

import (
	"bytes"
	"encoding/json"
	"fmt"
	"strings"
	"sync"

	"github.com/gpu-fault/kubectl-gpu-fault/debugpod/api"
)

// maxLine is the size limit of one response, in bytes.
const maxLine = api.MaxAnswer

// answers parses the helper's standard output, and passes on each response when its line is complete.
type answers struct {
	each func(api.Answer)
	stop func() // cancels the stream if it contains anything other than responses

	mu     sync.Mutex
	line   []byte
	final  *api.Answer // the last response, with Done or Error
	some   bool        // a response without Error was received
	broken error       // error caused by invalid output
	closed bool
}

// Write never returns an error. If it did, client-go would continue to read from the connection until it ended.
func (a *answers) Write(p []byte) (int, error) {
	a.mu.Lock()
	defer a.mu.Unlock()
	for rest := p; len(rest) > 0 && !a.closed && a.broken == nil; {
		end := bytes.IndexByte(rest, '\n')
		if end < 0 {
			a.line = append(a.line, rest...)
			if len(a.line) > maxLine {
				a.broken = fmt.Errorf("a response is longer than %d bytes", maxLine)
			}
			break
		}
		a.take(append(a.line, rest[:end]...))
		a.line, rest = a.line[:0], rest[end+1:]
	}
	if a.broken != nil && a.stop != nil {
		a.stop()
	}
	return len(p), nil
}

func (a *answers) take(line []byte) {
	if a.final != nil {
		a.broken = fmt.Errorf("the helper continued after its last response: %s", excerpt(line))
		return
	}
	var version struct {
		Protocol int `json:"protocol"`
	}
	if err := json.Unmarshal(line, &version); err != nil {
		a.broken = fmt.Errorf("not a response from the helper: %s", excerpt(line))
		return
	}
	if version.Protocol != api.Protocol {
		a.broken = fmt.Errorf("the helper uses protocol version %d, but this client uses version %d", version.Protocol, api.Protocol)
		return
	}
	var answer api.Answer
	dec := json.NewDecoder(bytes.NewReader(line))
	dec.DisallowUnknownFields()
	if err := dec.Decode(&answer); err != nil {
		a.broken = fmt.Errorf("decode a response from the helper: %w: %s", err, excerpt(line))
		return
	}
	a.some = a.some || answer.Error == nil
	if answer.Done || answer.Error != nil {
		a.final = &answer
	}
	if a.each != nil {
		a.each(answer)
	}
}

// heard reports whether a response certainly came from the helper. The upload shell sends only errors.
func (a *answers) heard() bool {
	a.mu.Lock()
	defer a.mu.Unlock()
	return a.some
}

// close stops passing on responses, even if the stream still delivers output. It returns the last response, and the
// error caused by invalid output.
func (a *answers) close() (final *api.Answer, broken error) {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.closed = true
	if a.broken == nil && len(a.line) > 0 {
		a.broken = fmt.Errorf("the last response is truncated: %s", excerpt(a.line))
	}
	return a.final, a.broken
}

func excerpt(line []byte) string {
	const most = 200
	text := strings.TrimSpace(string(line))
	if len(text) > most {
		text = text[:most] + "..."
	}
	return fmt.Sprintf("%q", text)
}

// tail keeps the last bytes of a stream.
type tail struct {
	mu   sync.Mutex
	text []byte
}

const maxTail = 2 << 10

func (t *tail) Write(p []byte) (int, error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.text = append(t.text, p...)
	if over := len(t.text) - maxTail; over > 0 {
		t.text = append(t.text[:0], t.text[over:]...)
	}
	return len(p), nil
}

func (t *tail) String() string {
	t.mu.Lock()
	defer t.mu.Unlock()
	return strings.TrimSpace(string(t.text))
}
