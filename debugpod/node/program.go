package node

import (
	"crypto/sha256"
	"encoding/hex"
	"io"
	"os"

	"github.com/gpu-fault/kubectl-gpu-fault/debugpod/api"
)

// CheckProgram returns an error unless the helper in an image is the one embedded in the client. want is the helper's
// SHA-256 checksum in hexadecimal.
func CheckProgram(path, want string) *api.Error {
	file, err := os.Open(path)
	if err != nil {
		return api.Errorf(api.CodeOtherHelper, "read the helper's own executable: %v", err)
	}
	defer func() { _ = file.Close() }()
	hash := sha256.New()
	if _, err := io.Copy(hash, file); err != nil {
		return api.Errorf(api.CodeOtherHelper, "read the helper's own executable: %v", err)
	}
	if got := hex.EncodeToString(hash.Sum(nil)); got != want {
		return api.Errorf(api.CodeOtherHelper,
			"the image contains a different node helper than this build of kubectl gpu-fault (SHA-256 %.12s, expected %.12s): "+
				"the tag was moved, or the image is from another build; recreate the image with kubectl gpu-fault image push or save, or specify its digest",
			got, want)
	}
	return nil
}
