package exercise

import (
	"context"
	"net/http"
	"time"

	"k8s.io/client-go/rest"
)

// maxSkew is how far this machine's clock may be off before the API server's is taken instead: its Date header has whole seconds.
const maxSkew = 2 * time.Second

// clock returns the time as the API server has it, by which the time box of an exercise is measured: trainers, candidates and the token all
// have clocks of their own. When it does not say, this machine's counts.
func (l *Lab) clock(ctx context.Context) func() time.Time {
	if l.Now != nil {
		return func() time.Time { return l.Now().UTC() }
	}
	skew := l.skew(ctx)
	if skew > -maxSkew && skew < maxSkew {
		skew = 0
	} else {
		way := "behind"
		if skew < 0 {
			way = "ahead of"
		}
		l.say("this machine's clock is %s %s the API server's, which counts", skew.Abs().Round(time.Second), way)
	}
	return func() time.Time { return time.Now().UTC().Add(skew).Truncate(time.Millisecond) }
}

// skew is how much later the API server has it than this machine; zero when it does not say.
func (l *Lab) skew(ctx context.Context) time.Duration {
	if l.Config == nil {
		return 0
	}
	ctx, cancel := context.WithTimeout(ctx, 5*time.Second)
	defer cancel()
	client, err := rest.HTTPClientFor(l.Config)
	if err != nil {
		return 0
	}
	address, _, err := rest.DefaultServerUrlFor(l.Config)
	if err != nil {
		return 0
	}
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, address.JoinPath("version").String(), nil)
	if err != nil {
		return 0
	}
	began := time.Now()
	answer, err := client.Do(request)
	if err != nil {
		return 0
	}
	defer func() { _ = answer.Body.Close() }()
	date, err := http.ParseTime(answer.Header.Get("Date"))
	if err != nil {
		return 0
	}
	halfway := began.Add(time.Since(began) / 2)
	// The header has cut off half a second, on average.
	return date.Add(500 * time.Millisecond).Sub(halfway)
}
