// Command registry serves container images to the nodes, so that pulls can truly work and truly fail:
// go-containerregistry's registry, in memory. What lies below private/ asks for a password. Archives of images are put
// in at the start.
//
//	registry -listen 10.99.0.1:5000 -user NAME:PASSWORD NAME:TAG=ARCHIVE...
package main

import (
	"crypto/subtle"
	"flag"
	"fmt"
	"log"
	"net"
	"net/http"
	"strings"
	"time"

	"github.com/google/go-containerregistry/pkg/authn"
	"github.com/google/go-containerregistry/pkg/name"
	"github.com/google/go-containerregistry/pkg/registry"
	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/remote"
)

func main() {
	listen := flag.String("listen", "127.0.0.1:5000", "address")
	user := flag.String("user", "", "NAME:PASSWORD of what lies below private/")
	flag.Parse()
	listener, err := net.Listen("tcp", *listen)
	if err != nil {
		log.Fatal("registry: ", err)
	}
	account, password, _ := strings.Cut(*user, ":")
	server := &http.Server{Handler: private(registry.New(), account, password), ReadHeaderTimeout: 10 * time.Second}
	go func() {
		for _, image := range flag.Args() {
			if err := push(*listen, image, account, password); err != nil {
				log.Fatalf("registry: %s: %v", image, err)
			}
		}
		log.Print("registry: ready")
	}()
	log.Fatal("registry: ", server.Serve(listener))
}

// private asks for the password of repositories below private/, as registries do that know no tokens.
func private(next http.Handler, account, password string) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		a, p, _ := r.BasicAuth()
		right := subtle.ConstantTimeCompare([]byte(a),
			[]byte(account)) & subtle.ConstantTimeCompare([]byte(p), []byte(password))
		if strings.HasPrefix(r.URL.Path, "/v2/private/") && right != 1 {
			w.Header().Set("WWW-Authenticate", `Basic realm="registry"`)
			w.Header().Set("Content-Type", "application/json")
			w.WriteHeader(http.StatusUnauthorized)
			fmt.Fprintln(w, `{"errors":[{"code":"UNAUTHORIZED","message":"authentication required"}]}`)
			return
		}
		next.ServeHTTP(w, r)
	})
}

// push puts NAME:TAG=ARCHIVE into the registry.
func push(host, image, account, password string) error {
	short, archive, is := strings.Cut(image, "=")
	if !is {
		return fmt.Errorf("wanted NAME:TAG=ARCHIVE")
	}
	ref, err := name.ParseReference(host+"/"+short, name.Insecure)
	if err != nil {
		return err
	}
	var img v1.Image
	if img, err = open(archive); err != nil {
		return err
	}
	return remote.Write(ref, img, remote.WithAuth(&authn.Basic{Username: account, Password: password}))
}
