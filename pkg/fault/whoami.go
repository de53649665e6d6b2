package fault

import (
	"context"

	authenticationv1 "k8s.io/api/authentication/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// Whoami returns the user name according to the API server. The name is informational, so errors are ignored.
func (s *Session) Whoami(ctx context.Context) string {
	review, err := s.Client.AuthenticationV1().SelfSubjectReviews().Create(ctx, &authenticationv1.SelfSubjectReview{},
		metav1.CreateOptions{})
	if err != nil {
		s.warn("your user name will not be recorded: %v", err)
		return ""
	}
	return review.Status.UserInfo.Username
}
