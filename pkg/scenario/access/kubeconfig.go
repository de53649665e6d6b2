package access

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"os"
	"time"

	authenticationv1 "k8s.io/api/authentication/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"
	clientcmdapi "k8s.io/client-go/tools/clientcmd/api"

	"github.com/gpu-fault/kubectl-gpu-fault/pkg/scenario"
)

const (
	// shortest is the shortest lifetime of a token that the API server issues.
	shortest = 10 * time.Minute
	// extended is the lifetime, in seconds, by which the API server recognizes a pod's token, which it extends to a
	// year. https://github.com/kubernetes/kubernetes/blob/master/pkg/serviceaccount/claims.go,
	// WarnOnlyBoundTokenExpirationPeriod
	extended = 60*60 + 7
	// tolerated is the maximum deviation from the requested lifetime for which no note is needed, because clocks differ
	// and the API server rounds.
	tolerated = time.Minute
)

// Issued is a kubeconfig and the lifetime of its token.
type Issued struct {
	Kubeconfig []byte
	// Until is the expiry of the token, according to the API server's clock.
	Until time.Time
	// Note explains why the expiry differs from the requested one. It is empty if they are the same.
	Note string
}

// Kubeconfig returns a kubeconfig for the exercise's account. The kubeconfig expires at until. Its token is valid for
// at least ten minutes, and the API server may choose another lifetime: see Issued.Note. config is the trainer's; only
// the address and the CA in it are used, not the credentials.
func Kubeconfig(
	ctx context.Context, client kubernetes.Interface, config *rest.Config, id string, a scenario.Access,
	until time.Time,
) (Issued, error) {
	now := time.Now()
	if !until.After(now) {
		return Issued{},
			fmt.Errorf("the exercise's time box ended at %s; end the exercise and start it again",
				until.Format(time.RFC3339))
	}
	cluster, err := clusterOf(config)
	if err != nil {
		return Issued{}, err
	}
	asked := max(until.Sub(now), shortest)
	seconds := int64(asked.Round(time.Second) / time.Second)
	if seconds == extended {
		seconds++
	}
	namespace, account := Account(id)
	token, err := client.CoreV1().ServiceAccounts(namespace).CreateToken(ctx, account,
		&authenticationv1.TokenRequest{Spec: authenticationv1.TokenRequestSpec{ExpirationSeconds: &seconds}},
		metav1.CreateOptions{})
	if err != nil {
		return Issued{}, explain(err, namespace, account)
	}
	if token.Status.Token == "" {
		return Issued{},
			errors.New("the API server returned an empty token: TokenRequest requires Kubernetes 1.24 or later")
	}
	text, err := write(cluster, token.Status.Token, a)
	if err != nil {
		return Issued{}, err
	}
	ends := token.Status.ExpirationTimestamp.Time
	return Issued{Kubeconfig: text, Until: ends, Note: note(ends, until, asked, now)}, nil
}

func explain(err error, namespace, account string) error {
	switch {
	case apierrors.IsForbidden(err):
		return fmt.Errorf("create token for the candidate: %w; requires the permission to create serviceaccounts/token in namespace %s",
			err, namespace)
	case apierrors.IsNotFound(err):
		return fmt.Errorf("create token for the candidate: service account %s/%s not found; end the exercise and start it again: %w",
			namespace, account, err)
	}
	return fmt.Errorf("create token for the candidate: %w", err)
}

// note returns a note if the lifetime of a token differs from the requested one.
func note(ends, until time.Time, asked time.Duration, now time.Time) string {
	clock := func(t time.Time) string { return t.Local().Format("15:04:05") }
	switch wanted := now.Add(asked); {
	case ends.Before(wanted.Add(-tolerated)):
		return fmt.Sprintf("the candidate's token expires at %s, before the time box ends at %s: the API server "+
			"limits the lifetime (--service-account-max-token-expiration); create another kubeconfig before it "+
			"expires", clock(ends),
			clock(until))
	case ends.After(wanted.Add(tolerated)):
		return fmt.Sprintf("the candidate's token expires at %s, after the time box ends at %s, as decided by the "+
			"API server; ending the exercise deletes its account and invalidates the token", clock(ends), clock(until))
	case wanted.After(until.Add(tolerated)):
		return fmt.Sprintf("the candidate's token expires at %s, after the time box ends at %s: the minimum lifetime "+
			"of a token is ten minutes; ending the exercise deletes its account and invalidates the "+
			"token", clock(ends), clock(until))
	}
	return ""
}

// clusterOf returns the address and the CA of the API server, with files inlined, because the candidate does
// not have the trainer's files.
func clusterOf(config *rest.Config) (*clientcmdapi.Cluster, error) {
	base, _, err := rest.DefaultServerUrlFor(config)
	if err != nil {
		return nil, fmt.Errorf("invalid address of the API server: %w", err)
	}
	ca := config.CAData
	if len(ca) == 0 && config.CAFile != "" {
		if ca, err = os.ReadFile(config.CAFile); err != nil {
			return nil, fmt.Errorf("read CA of the API server: %w", err)
		}
	}
	cluster := &clientcmdapi.Cluster{
		Server: base.String(), CertificateAuthorityData: ca, InsecureSkipTLSVerify: config.Insecure,
		TLSServerName:      config.ServerName,
		DisableCompression: config.DisableCompression,
	}
	if config.Proxy != nil {
		if proxy, err := config.Proxy(&http.Request{URL: base}); err == nil && proxy != nil {
			bare := *proxy
			bare.User = nil // remove the trainer's credentials
			cluster.ProxyURL = bare.String()
		}
	}
	return cluster, nil
}

func write(cluster *clientcmdapi.Cluster, token string, a scenario.Access) ([]byte, error) {
	context := &clientcmdapi.Context{Cluster: "lab", AuthInfo: "candidate", Namespace: a.Home()}
	text, err := clientcmd.Write(clientcmdapi.Config{
		Clusters:       map[string]*clientcmdapi.Cluster{"lab": cluster},
		AuthInfos:      map[string]*clientcmdapi.AuthInfo{"candidate": {Token: token}},
		Contexts:       map[string]*clientcmdapi.Context{"lab": context},
		CurrentContext: "lab",
	})
	if err != nil {
		return nil, fmt.Errorf("write kubeconfig for the candidate: %w", err)
	}
	return text, nil
}
